"""Tests of hf_compat.tuning: hyperparameter search."""

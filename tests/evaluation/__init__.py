"""Tests of hf_compat.evaluation."""

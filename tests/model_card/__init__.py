"""Tests of hf_compat.model_card."""

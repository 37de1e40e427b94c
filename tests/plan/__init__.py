"""Tests of hf_compat.plan: the numbers of a run."""

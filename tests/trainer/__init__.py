"""Tests of hf_compat.trainer: the class, one `train()` from its start to its end, evaluations and searches."""

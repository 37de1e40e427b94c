"""Tests of hf_compat.data: batches, their order and their windows."""

"""Tests of hf_compat.distributed, and all tests that start several processes."""

"""Tests of hf_compat.checkpoint: files that are written whole, found again and read without trust."""

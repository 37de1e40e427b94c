"""Tests of hf_compat.tools: what the command line runs."""

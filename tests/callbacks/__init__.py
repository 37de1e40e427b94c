"""Tests of hf_compat.callbacks, beside those of the installed transformers."""

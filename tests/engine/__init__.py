"""Tests of hf_compat.engine: what we ask of Lightning."""

"""Tests of hf_compat.trainer: the surface of the class, whatever strategy it runs on."""

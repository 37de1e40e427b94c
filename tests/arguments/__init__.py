"""Tests of hf_compat.arguments: what is taken, made of it and refused."""

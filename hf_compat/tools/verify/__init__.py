"""Comparing a script's run with transformers' Trainer and with hf_compat's."""

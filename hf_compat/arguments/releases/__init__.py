"""Differences between releases of transformers."""

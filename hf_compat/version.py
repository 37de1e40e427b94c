"""The version of hf_compat."""

__version__ = "0.1.0"

"""The functions behind the commands of ``hf-compat``."""

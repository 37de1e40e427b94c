"""Which processes a run has, on which devices, and what they do together."""

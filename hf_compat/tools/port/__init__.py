"""``hf-compat port``: the change of a script's imports, to review or to apply."""

"""How a model is trained on one device or over several processes: one folder or file per strategy."""

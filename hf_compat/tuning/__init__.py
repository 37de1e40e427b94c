"""Hyperparameter search: what a trial tries, what it is scored by, and the libraries that choose trials."""

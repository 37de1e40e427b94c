"""Hyperparameter search: the search space, the objective, and the backends that run trials."""

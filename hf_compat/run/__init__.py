"""A training run: the state of one ``train()``, and a Lightning callback for each of its concerns."""

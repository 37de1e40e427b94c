"""Optimizers, learning-rate schedules and losses, by name."""

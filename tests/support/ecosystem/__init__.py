"""Runs of libraries that subclass transformers' Trainer, each the same with that Trainer and with ours."""

"""Tests of hf_compat.optim: optimizers, schedules and what else touches gradients."""

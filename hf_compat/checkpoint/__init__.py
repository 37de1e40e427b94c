"""Checkpoint folders: layout, writing, resuming, rotation."""

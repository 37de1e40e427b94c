"""Tests of what one train() does: numbers, events, resuming, preemption."""

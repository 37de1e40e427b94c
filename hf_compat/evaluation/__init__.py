"""Evaluation and prediction: accumulation over batches, results, metrics."""

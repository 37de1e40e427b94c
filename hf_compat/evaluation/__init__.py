"""Evaluation and prediction: outputs accumulated over batches, results, metrics."""

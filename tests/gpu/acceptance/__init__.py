"""What to run on a lent GPU: ``python -m tests.gpu.acceptance``, and ``python -m tests.gpu.acceptance speed``."""

"""What several tests use: tiny models, other libraries beside ours, processes, checkpoints."""

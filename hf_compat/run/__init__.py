"""What one ``train()`` owns: the run, and each of its concerns as a Lightning callback with its state."""

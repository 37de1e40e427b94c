"""Converting between Lightning's checkpoints and Hugging Face folders."""

"""What differs between releases of transformers."""

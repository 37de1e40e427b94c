"""The scripts in `examples/`."""

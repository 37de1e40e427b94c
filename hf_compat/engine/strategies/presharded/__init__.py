"""Models that ``from_pretrained`` has sharded."""

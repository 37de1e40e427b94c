"""Strategies of training on one device or over several processes: a folder or file each."""

"""Checkpoints of any of JAX's formats: arrays by name, their alteration, and what differs between two."""

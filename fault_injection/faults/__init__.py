"""Faults: injection files, fault models, scaling."""

"""Detectors of silent data corruption, and recovery from it."""

"""Detectors of silent data corruption, recovery from it, and the scoreboard of both."""

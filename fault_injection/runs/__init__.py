"""Runs: golden, replayed, recorded, judged."""

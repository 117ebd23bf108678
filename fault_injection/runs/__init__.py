"""Runs: moved forward, recorded, judged; the golden run and the replay."""

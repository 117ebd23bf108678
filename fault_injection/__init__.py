"""When and with what a training run is corrupted, and what came of it."""

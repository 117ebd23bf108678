"""What the authors of the published work provide: checkpoints, their format, their folders."""

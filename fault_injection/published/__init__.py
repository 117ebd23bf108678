"""What the authors of the published work provide: checkpoints, their format, and the folders that hold them."""

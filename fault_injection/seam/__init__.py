"""What a run needs of the thing that is trained: the seam between engines and runs."""

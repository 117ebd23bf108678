"""What trackers and trainers write, read as columns: one file per family, and one result for all of them."""

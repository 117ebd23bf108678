"""What can be asked of each experiment: what came of it, who noticed, did the answer change."""

"""What a pass tells of its tensors and products: reductions, checksums, and profiles of activations."""

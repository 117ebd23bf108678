"""What is trained: programs, workloads, optimizers."""

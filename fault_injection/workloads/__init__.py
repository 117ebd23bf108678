"""Workloads by name, and the workload that a user's own training becomes."""

"""Strategies of data-parallel training: who has a copy of the state, and what becomes of the workers' gradients."""

# With `replicated` all workers share one state.  With `ddp` each has its own copy, and all read the same summed
# gradient, as in PyTorch's DistributedDataParallel: copies that differ stay different (docs/state.md).
REPLICATED, DDP = STRATEGIES = ("replicated", "ddp")

"""The operations that a fault can strike: products of two tensors, table lookups, and the gradients of both.

Each operation is written twice.  `compute` is what every step runs: all workers of the device as
one batch, in the fastest formulation.  `operands` and `product` are the published form of the same
operation for one worker, with padding, dilation and transposes laid out.  Positions in an injection
file refer to the published form, as in the published artifact (docs/science.md, Sites and operands;
He et al., ISCA 2023, artifact).  A fault acts on the published form; what it changes there is
carried over into the fast result.
"""

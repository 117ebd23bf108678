"""A program from any JAX step: its jaxpr is interpreted, and struck at its products and convolutions."""

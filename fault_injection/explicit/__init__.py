"""A program from an explicit network: both passes written out, on a mesh of workers."""

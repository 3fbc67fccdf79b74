"""Functions of the CUDA libraries that torch has loaded: their addresses, and recordings of their calls."""

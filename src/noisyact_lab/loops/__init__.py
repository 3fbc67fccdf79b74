"""What makes training steps fast on a GPU: CUDA graphs, TF32 products and a compiled optimiser."""

"""Faster updates on a GPU: CUDA graphs, TF32, a compiled Adadelta."""

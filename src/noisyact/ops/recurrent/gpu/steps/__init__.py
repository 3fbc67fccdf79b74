"""Recurrent layers on a GPU, step by step: a product by cuBLAS and a pointwise kernel for each step."""

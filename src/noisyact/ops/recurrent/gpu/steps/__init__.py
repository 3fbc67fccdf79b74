"""Recurrent layers on a GPU step by step, and cells: a product by cuBLAS and a pointwise kernel for each step."""

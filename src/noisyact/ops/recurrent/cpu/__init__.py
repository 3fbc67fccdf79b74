"""Recurrent layers and cells on a CPU, by C kernels."""

"""Noisy recurrent layers, cells and functions, and the choice of the kernel that runs them."""

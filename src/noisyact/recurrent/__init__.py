"""Noisy recurrent layers, cells and functions, and the choice of their backend."""

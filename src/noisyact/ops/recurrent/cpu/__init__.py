"""Recurrent layers and cells on a CPU, in C."""

"""A recurrent layer in one direction, or one step of a cell, with noise from a seed."""

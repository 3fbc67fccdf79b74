"""Measure saturation, noise and gradients inside a running model."""

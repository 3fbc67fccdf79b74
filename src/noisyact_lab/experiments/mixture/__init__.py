"""Mixture of Gaussians."""

"""Fused operations, one folder each: reference, fast paths, registration with torch, derivation."""

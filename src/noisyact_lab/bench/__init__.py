"""Benchmarks: time ratios to torch, measured in the same process. Each case is checked for correct results first."""

"""Benchmarks: ours and torch's in one run, as ratios, each row only after its numbers were found right."""

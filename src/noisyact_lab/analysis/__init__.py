"""Tables of results with intervals, and their comparison with the paper."""

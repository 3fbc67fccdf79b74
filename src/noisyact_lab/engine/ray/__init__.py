"""Many jobs on a Ray cluster."""

"""Run experiments: one job, its training loop, its folder, and many jobs side by side."""

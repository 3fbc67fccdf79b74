"""What makes a recurrence written by hand fast: deferred gradients, CUDA graphs, blocks of seeds."""

"""The laboratory: the paper's experiments on top of noisyact, and the command line that runs them."""

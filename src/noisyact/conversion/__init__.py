"""Make an existing model noisy: find what saturates, replace it, list the result."""

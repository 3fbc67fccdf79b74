"""English to French."""

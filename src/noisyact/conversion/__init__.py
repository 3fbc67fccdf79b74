"""Convert an existing model: find saturating modules, replace them by noisy ones, and list the result."""

"""Learning to Execute."""

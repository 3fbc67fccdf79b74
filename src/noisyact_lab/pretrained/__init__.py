"""Trained models that are shipped: each has its weights and words in one file, and a card that says what it is."""

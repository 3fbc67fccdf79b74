"""English to French."""

NAMES = ("translate", "translate-adam", "translate-multi30k")
"""The experiments: the paper's recipe, a recent one for the same model, and one for a small corpus."""

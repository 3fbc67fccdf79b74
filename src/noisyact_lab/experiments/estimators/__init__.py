"""How to train hard gates: the paper's noise and other estimators, in the networks of three other experiments."""

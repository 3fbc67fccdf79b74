"""Attention models as plain PyTorch modules, without noise; `noisyact.noisify` makes them noisy."""

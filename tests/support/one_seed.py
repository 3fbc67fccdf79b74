"""Noise of one seed, for results that are compared between threads or processes."""

import torch

from noisyact.noise import _Blocks


class OneSeed(_Blocks):
    """A region of this thread in which every seed is the same."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed

    def next(self, device: torch.device) -> torch.Tensor:
        return torch.tensor(self._seed, device=device)

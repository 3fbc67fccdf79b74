"""The layers of a case: ours with noise, ours with soft functions, and torch's, all with the same weights and input."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from noisyact.recurrent.layers import NoisyGRU, NoisyLSTM, NoisyRecurrent, NoisyRNN
from noisyact_lab.bench.grid.cases import Case
from noisyact_lab.bench.grid.flashrnn import FlashLSTM
from noisyact_lab.bench.recurrent_gpu import exact_products

__all__ = ["Layers", "build", "forward_and_backward", "inference", "output", "products_of"]

_OURS: dict[str, Any] = {"LSTM": NoisyLSTM, "GRU": NoisyGRU, "RNN": NoisyRNN}
_THEIRS: dict[str, Any] = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
_DROPOUT = 0.3


@dataclasses.dataclass(frozen=True)
class Layers:
    """The layers by name ("noisy", "soft", "torch", "flashrnn"), their input and the gradient of their output.

    There is no soft layer where our kernel has no soft functions: such a layer of ours is torch's own.
    """

    by_name: dict[str, nn.RNNBase]
    x: Tensor
    """[steps, batch, units], a leaf; packed input is packed from it."""
    g: Tensor
    """The gradient of the output, of its padded or packed shape."""
    lengths: Tensor | None
    """The length of each sequence in decreasing order, for packed input."""


def build(case: Case, device: str, seed: int = 0) -> Layers:
    """Build the layers of a case in training mode. Weights, input and lengths depend on the seed alone."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {"device": device, "dtype": case.torch_dtype, "bias": case.option != "no bias"}
    settings["bidirectional"] = case.option == "bidirectional"
    settings["dropout"] = _DROPOUT if case.option == "dropout" else 0.0
    if case.proj_size:
        settings["proj_size"] = case.proj_size
    sizes = (case.hidden, case.hidden, case.layers)
    plain = _THEIRS[case.cell](*sizes, **settings)
    noisy = _OURS[case.cell](*sizes, noise="nah", **settings)
    noisy.load_state_dict(plain.state_dict(), strict=False)
    kernel = "triton" if torch.device(device).type == "cuda" else "cpu"
    soft = _OURS[case.cell](*sizes, noise=None, hard=False, backend=kernel, **settings)
    soft.load_state_dict(plain.state_dict())
    x = torch.randn(case.steps, case.batch, case.hidden, device=device, dtype=case.torch_dtype).requires_grad_()
    lengths = None
    if case.option == "packed":
        lengths = torch.randint(1, case.steps + 1, (case.batch,)).sort(descending=True).values
        lengths[0] = case.steps
    layers = {"noisy": noisy, "soft": soft, "torch": plain} if _runs(soft, x) else {"noisy": noisy, "torch": plain}
    if case.option == "flashrnn":
        layers["flashrnn"] = FlashLSTM(*sizes, **settings)
        layers["flashrnn"].load_state_dict(plain.state_dict())
    features = (case.proj_size or case.hidden) * (2 if settings["bidirectional"] else 1)
    rows = (case.steps, case.batch) if lengths is None else (int(lengths.sum()),)
    g = torch.randn(*rows, features, device=device, dtype=case.torch_dtype)
    return Layers(layers, x, g, lengths)


def _runs(soft: NoisyRecurrent, x: Tensor) -> bool:
    """Whether our kernel supports soft functions for this layer. A forced backend raises an error if it cannot run."""
    try:
        with torch.no_grad():
            soft(x[:1, :1].detach())
    except RuntimeError as error:
        if "cannot run this" not in str(error):
            raise
        return False
    return True


def output(layer: nn.RNNBase, x: Tensor, lengths: Tensor | None) -> Tensor:
    """The output of a layer, [steps, batch, features] or the packed rows, [rows, features]."""
    given = x if lengths is None else pack_padded_sequence(x, lengths)
    y = layer(given)[0]
    return y.data if isinstance(y, PackedSequence) else y


def forward_and_backward(layer: nn.RNNBase, layers: Layers) -> Callable[[], object]:
    """Return a function that runs a layer forward and backward."""

    def run() -> None:
        layer.zero_grad()
        layers.x.grad = None
        output(layer, layers.x, layers.lengths).backward(layers.g)

    return run


def inference(layer: nn.RNNBase, layers: Layers) -> Callable[[], object]:
    """Return a function that runs a layer forward without recording gradients. The layer must be in evaluation mode."""
    x = layers.x.detach()

    def run() -> None:
        with torch.no_grad():
            output(layer, x, layers.lengths)

    return run


@contextlib.contextmanager
def products_of(dtype: str) -> Iterator[None]:
    """Switch TF32 on for the recurrent layers if the dtype is tf32, and off for float32. Has no effect on a CPU."""
    if dtype != "tf32":
        with exact_products():
            yield
        return
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, True
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before

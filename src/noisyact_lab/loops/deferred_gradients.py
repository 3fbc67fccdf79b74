"""Recurrences written by hand: the gradient of a weight that is used at every step, as one product over all steps.

A loop over T steps uses the same weight T times. Autograd then makes T products, each as large as the weight, and adds
them one to the other: at 1,024 units and batches of 32 that is most of the memory a backward pass moves. Here each use
leaves its input x_t and its gradient dy_t, and when all have come, dW = sum_t dy_t^T x_t is one product. So it is with
what an attention looks at, the annotations A of each sentence: of the contexts w_t A, dA = sum_t w_t^T dy_t. Where the
inputs of all steps are rows of one tensor, as words are that the loop is given, W x_t is one product forward too. On a
GPU the gradients of an additive attention's keys are summed where they arise, by the kernel of its scores. And those of
a noisy function's p are summed once, not at every step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from noisyact.ops.activation.op import noisy_activation
from noisyact.ops.recurrent.cell import cell
from noisyact.ops.recurrent.types import CellNoise
from noisyact.pairs import HardPair
from noisyact.schemes import Scheme
from noisyact_lab.loops.deferred_keys import Keys
from noisyact_lab.loops.deferred_leaf import Pile, anchored
from noisyact_lab.loops.deferred_p import P
from noisyact_lab.models.additive_attention import additive_scores, drawn

__all__ = ["gathered_gradients"]


def gathered_gradients(on: bool = True) -> contextlib.AbstractContextManager[Any]:
    """Within it, weights used several times by `F.linear` get their gradient in one product; backward may be outside.

    That is `nn.Linear` and the cells of this package, and on a GPU nn.LSTMCell and nn.GRUCell; the second factors of
    `torch.bmm` do too, and the p of this package's cells and activations theirs in one sum. Inputs that are rows of one
    tensor (``for x in sequence``) are multiplied all at once, and then have no gradient of their own, the tensor has.
    The gradients are those of autograd up to the order of summation, and cannot be differentiated again. Nothing is
    gathered under autocast or a transform of torch.func. It is for steps captured on a GPU: every call of torch takes
    the host longer, and on a CPU that is as much as is gained.

    >>> layer = torch.nn.Linear(4, 4)
    >>> h = torch.ones(2, 4)
    >>> with gathered_gradients():
    ...     for _ in range(10):
    ...         h = layer(h).tanh()
    >>> h.sum().backward()  # one product for layer.weight, not ten
    """
    return _Gathering() if on else contextlib.nullcontext()


class _Gathering(TorchFunctionMode):
    """Sees every function of torch that is called, and has the products with weights done otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self._weights: dict[tuple[int, int], _Weight] = {}
        self._products: dict[tuple[tuple[int, int], ...], tuple[Any, tuple[Tensor, ...]]] = {}
        self._keys: dict[tuple[int, ...], Keys] = {}
        self._ps: dict[int, P] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        own = _OWN.get(func)
        if own is not None and not kwargs and _can_gather(own, args):
            return own.method(self, *args)
        return func(*args, **(kwargs or {}))

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x W^T + b."""
        if (place := _place(x)) is not None:
            whole = x._base
            assert whole is not None
            factors = whole, weight, bias
            key = tuple((id(factor), factor._version) for factor in factors if factor is not None)
            if key not in self._products:  # they are held as long as their ids are a key
                self._products[key] = factors, F.linear(*factors).unbind()
            return self._products[key][1][place]
        if not weight.requires_grad or weight.numel() < x.numel():  # then it is the inputs that would be copied
            return F.linear(x, weight, bias)
        return self._use(x, weight, bias)

    def batched_product(self, x: Tensor, factor: Tensor) -> Tensor:
        """x F of each of a batch."""
        if not factor.requires_grad or factor.numel() < x.numel():
            return torch.bmm(x, factor)
        return self._use(x, factor, None)

    def _use(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        key = id(weight), id(bias)
        if key not in self._weights:
            self._weights[key] = _Weight(weight, bias)
        return _Use.apply(x, *self._weights[key].of_use)

    def scores(
        self, keys: Tensor, query: Tensor, function: nn.Module, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Of an additive attention."""
        found = drawn(keys, query, function, weight)
        if found is None:
            return additive_scores(keys, query, function, weight, bias)
        key = id(keys), id(weight), id(found.p)
        if key not in self._keys:
            self._keys[key] = Keys(keys, weight, found.p)
        e = self._keys[key].scores(query, found)
        return e if bias is None else e + bias

    def noisy_cell(
        self, kind: str, a: Tensor, recurrent: Tensor | None, h: Tensor, c: Tensor | None, p: Tensor,
        seed: Tensor | None, noise: CellNoise,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """What follows the products in a cell of this package."""
        p, leave = self._p(p)
        return cell(kind, a, recurrent, h, c, p, seed, noise, leave)

    def noisy_function(
        self, x: Tensor, p: Tensor, scale: Tensor, seed: Tensor | None, scheme: Scheme, pair: HardPair
    ) -> Tensor:
        """An activation of this package."""
        p, leave = self._p(p)
        return noisy_activation(x, p, scale, seed, scheme, pair, leave)

    def _p(self, p: Tensor) -> tuple[Tensor, Callable[[Tensor], None] | None]:
        if not p.requires_grad or torch._C._len_torch_dispatch_stack() > 0:
            return p, None
        if id(p) not in self._ps:
            self._ps[id(p)] = P(p)
        return self._ps[id(p)].of_use

    def lstm_cell(
        self, x: Tensor, state: tuple[Tensor, Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """torch.lstm_cell: its two products, and the kernel that torch has for the rest."""
        gates = self.product(x, w_ih, b_ih), self.product(state[0], w_hh, b_hh)
        h, c, _ = torch.ops.aten._thnn_fused_lstm_cell(*gates, state[1])
        return h, c

    def gru_cell(
        self, x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> Tensor:
        """torch.gru_cell, likewise."""
        gates = self.product(x, w_ih, b_ih), self.product(h, w_hh, b_hh)
        return torch.ops.aten._thnn_fused_gru_cell(*gates, h)[0]


class _Own(NamedTuple):
    """How a function is done here; which of its arguments is x, which are weights, and what these are."""

    method: Callable[..., Any]
    weights: slice
    dimensions: int = 2
    x: int = 0
    on_cpu: bool = True


_OWN: dict[Any, _Own] = {
    F.linear: _Own(_Gathering.product, slice(1, 2)),
    torch.bmm: _Own(_Gathering.batched_product, slice(1, 2), dimensions=3),
    additive_scores: _Own(_Gathering.scores, slice(3, 4)),
    cell: _Own(_Gathering.noisy_cell, slice(5, 6), dimensions=1, x=1),
    noisy_activation: _Own(_Gathering.noisy_function, slice(1, 2), dimensions=1),
    # torch has the rest of a cell as a kernel for GPUs alone.
    torch.lstm_cell: _Own(_Gathering.lstm_cell, slice(2, 4), on_cpu=False),
    torch.gru_cell: _Own(_Gathering.gru_cell, slice(2, 4), on_cpu=False),
}


def _can_gather(own: _Own, args: tuple[Any, ...]) -> bool:
    x, weights = args[own.x], args[own.weights]
    return (
        all(type(tensor) in (Tensor, nn.Parameter) for tensor in (x, *weights))
        and all(weight.dim() == own.dimensions and weight.dtype == x.dtype for weight in weights)
        and (own.on_cpu or x.is_cuda)
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled(x.device.type)
        and not torch._C._are_functorch_transforms_active()
    )


def _place(x: Tensor) -> int | None:
    """Which row of a tensor an input is, if it is one: an element of its first dimension, as a loop over it gives."""
    whole = x._base
    if whole is None or x.shape != whole.shape[1:] or not (whole.is_contiguous() and x.is_contiguous()):
        return None
    if x.numel() == 0 or whole.is_inference() or (x.dtype, x.requires_grad) != (whole.dtype, whole.requires_grad):
        return None
    place, rest = divmod(int(x.storage_offset()) - int(whole.storage_offset()), x.numel())
    return place if rest == 0 else None


class _Weight:
    """A weight within the region, in the form in which its uses take it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._held = weight, bias  # as long as their ids are keys
        gathered = _Gathered()
        if weight.dim() == 3:
            weight = weight.mT  # the second factor of torch.bmm: F is a W^T
        # The uses know the bias as a number only: its gradient too comes from all of them at once.
        self.of_use = anchored(gathered, weight, bias), None if bias is None else bias.detach(), gathered


class _Gathered:
    """What the uses of a weight have left."""

    def __init__(self) -> None:
        self._pile = Pile()

    def leave(self, x: Tensor, dy: Tensor) -> None:
        self._pile.leave(x.detach(), dy)

    def gradients(self, needed: Sequence[bool]) -> tuple[Tensor | None, Tensor | None]:
        """Of the weight and the bias."""
        left = self._pile.take()
        if not left:
            return None, None
        x, dy = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2) for parts in zip(*left, strict=True))
        if x.dim() == 3:
            return torch.bmm(x.mT, dy).mT, None  # laid out as the factor is
        return dy.T @ x, dy.sum(dim=0) if needed[1] else None


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


class _Use(torch.autograd.Function):
    """One product with the weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, gathered: _Gathered) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.gathered = gathered
        return F.linear(x, weight, bias) if weight.dim() == 2 else torch.bmm(x, weight.mT)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, None, None, None]:
        (dy,), (x, weight) = gradients, ctx.saved_tensors
        ctx.gathered.leave(*((_rows(x), _rows(dy)) if weight.dim() == 2 else (x, dy)))
        return dy @ weight if ctx.needs_input_grad[0] else None, None, None, None

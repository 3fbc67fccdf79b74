"""Deferred gradients for hand-written recurrences: one product over all steps instead of one product per step.

A loop over T steps uses the same weight T times. Autograd computes T products, each as large as the weight, and adds
them: with 1,024 units and batches of 32 this causes most of the memory traffic of a backward pass. Here each use
records its input x_t and its gradient dy_t, and after the last use dW = sum_t dy_t^T x_t is one product. The same holds
for the annotations A of an attention: for the contexts w_t A, dA = sum_t w_t^T dy_t. If the inputs of all steps are
rows of one tensor, W x_t is one product in the forward pass too. The backward kernel of additive attention sums the
gradient of the keys over the steps. The gradient of a noisy function's p is summed once for all steps: the kernels
return it in parts, and summing the parts at each step would take two small launches, as long as the kernel itself.
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

from noisyact.attention import additive_scores, drawn_noise
from noisyact.ops.activation.op import noisy_activation
from noisyact.ops.attention.op import DeferredKeys
from noisyact.ops.deferred_leaf import Contributions, deferred_leaf
from noisyact.ops.recurrent.cell import cell
from noisyact.ops.recurrent.types import CellNoise
from noisyact.pairs import HardPair
from noisyact.schemes import Scheme

__all__ = ["deferred_gradients"]


def deferred_gradients(on: bool = True) -> contextlib.AbstractContextManager[Any]:
    """Context manager that computes the gradients of tensors used at every step of a loop once, after the last step.

    Run the forward pass of the loop inside it; backward may run outside. It defers the gradients of

    - the weights of `F.linear`, hence of nn.Linear and noisyact's cells; on a GPU also those of nn.LSTMCell and
      nn.GRUCell. Inputs that are rows of one tensor (``for x in sequence``) are multiplied all at once; the gradient
      then reaches the tensor but not its rows;
    - the second factors of `torch.bmm`;
    - the p of noisyact's cells and activations;
    - on a GPU, the keys of :func:`noisyact.additive_scores`.

    The gradients equal autograd's up to the order of summation and cannot be differentiated again. Nothing is deferred
    under autocast or a torch.func transform. The context manager is meant for steps that are recorded as a CUDA graph:
    it adds host overhead to every torch call, which cancels the gain on a CPU.

    Args:
        on: if False, the context manager does nothing.

    >>> layer = torch.nn.Linear(4, 4)
    >>> h = torch.ones(2, 4)
    >>> with deferred_gradients():
    ...     for _ in range(10):
    ...         h = layer(h).tanh()
    >>> h.sum().backward()  # one product for layer.weight, not ten
    """
    return _Deferral() if on else contextlib.nullcontext()


class _Deferral(TorchFunctionMode):
    """Replaces the functions of `_REPLACED` within the region."""

    def __init__(self) -> None:
        super().__init__()
        self._weights: dict[tuple[int, int], _Weight] = {}
        self._products: dict[tuple[tuple[int, int], ...], tuple[Any, tuple[Tensor, ...]]] = {}
        self._keys: dict[tuple[int, ...], DeferredKeys] = {}
        self._ps: dict[int, _P] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        replaced = _REPLACED.get(func)
        if replaced is not None and not kwargs and _can_defer(replaced, args):
            return replaced.method(self, *args)
        return func(*args, **(kwargs or {}))

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """F.linear: x W^T + b."""
        if (place := _place(x)) is not None:
            whole = x._base
            assert whole is not None
            factors = whole, weight, bias
            key = tuple((id(factor), factor._version) for factor in factors if factor is not None)
            if key not in self._products:  # keeping references to the factors keeps their ids unique
                self._products[key] = factors, F.linear(*factors).unbind()
            return self._products[key][1][place]
        if not weight.requires_grad or weight.numel() < x.numel():  # recording the inputs would cost more memory
            return F.linear(x, weight, bias)
        return self._use(x, weight, bias)

    def batched_product(self, x: Tensor, factor: Tensor) -> Tensor:
        """torch.bmm: x F for each matrix of a batch."""
        if not factor.requires_grad or factor.numel() < x.numel():
            return torch.bmm(x, factor)
        return self._use(x, factor, None)

    def _use(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        key = id(weight), id(bias)
        if key not in self._weights:
            self._weights[key] = _Weight(weight, bias)
        return _Product.apply(x, *self._weights[key].arguments)

    def scores(
        self, keys: Tensor, query: Tensor, function: nn.Module, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """additive_scores: the scores of additive attention."""
        noise = drawn_noise(keys, query, function, weight)
        if noise is None:
            return additive_scores(keys, query, function, weight, bias)
        key = id(keys), id(weight), id(noise.p)
        if key not in self._keys:
            self._keys[key] = DeferredKeys(keys, weight, noise.p)
        e = self._keys[key].scores(query, noise)
        return e if bias is None else e + bias

    def noisy_cell(
        self, kind: str, a: Tensor, recurrent: Tensor | None, h: Tensor, c: Tensor | None, p: Tensor,
        seed: Tensor | None, noise: CellNoise, first_step: int = 0, rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The pointwise part of one of noisyact's cells."""
        p, defer_p = self._p(p)
        return cell(kind, a, recurrent, h, c, p, seed, noise, defer_p, first_step, rows)

    def noisy_function(
        self, x: Tensor, p: Tensor, scale: Tensor, seed: Tensor | None, scheme: Scheme, pair: HardPair
    ) -> Tensor:
        """One of noisyact's activations."""
        p, defer_p = self._p(p)
        return noisy_activation(x, p, scale, seed, scheme, pair, defer_p)

    def _p(self, p: Tensor) -> tuple[Tensor, Callable[[Tensor], None] | None]:
        if not p.requires_grad or torch._C._len_torch_dispatch_stack() > 0:
            return p, None
        if id(p) not in self._ps:
            self._ps[id(p)] = _P(p)
        return self._ps[id(p)].arguments

    def lstm_cell(
        self, x: Tensor, state: tuple[Tensor, Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """torch.lstm_cell: its two products, then torch's kernel for the rest."""
        gates = self.product(x, w_ih, b_ih), self.product(state[0], w_hh, b_hh)
        h, c, _ = torch.ops.aten._thnn_fused_lstm_cell(*gates, state[1])
        return h, c

    def gru_cell(
        self, x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> Tensor:
        """torch.gru_cell: its two products, then torch's kernel for the rest."""
        gates = self.product(x, w_ih, b_ih), self.product(h, w_hh, b_hh)
        return torch.ops.aten._thnn_fused_gru_cell(*gates, h)[0]


class _Replacement(NamedTuple):
    """The replacement of a function, and the positions of its weights and of x among its arguments."""

    method: Callable[..., Any]
    weights: slice
    dimensions: int = 2
    x: int = 0
    on_cpu: bool = True


_REPLACED: dict[Any, _Replacement] = {
    F.linear: _Replacement(_Deferral.product, slice(1, 2)),
    torch.bmm: _Replacement(_Deferral.batched_product, slice(1, 2), dimensions=3),
    additive_scores: _Replacement(_Deferral.scores, slice(3, 4)),
    cell: _Replacement(_Deferral.noisy_cell, slice(5, 6), dimensions=1, x=1),
    noisy_activation: _Replacement(_Deferral.noisy_function, slice(1, 2), dimensions=1),
    # torch's kernels for the rest of these cells run only on GPUs.
    torch.lstm_cell: _Replacement(_Deferral.lstm_cell, slice(2, 4), on_cpu=False),
    torch.gru_cell: _Replacement(_Deferral.gru_cell, slice(2, 4), on_cpu=False),
}


def _can_defer(replaced: _Replacement, args: tuple[Any, ...]) -> bool:
    x, weights = args[replaced.x], args[replaced.weights]
    return (
        all(type(tensor) in (Tensor, nn.Parameter) for tensor in (x, *weights))
        and all(weight.dim() == replaced.dimensions and weight.dtype == x.dtype for weight in weights)
        and (replaced.on_cpu or x.is_cuda)
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled(x.device.type)
        and not torch._C._are_functorch_transforms_active()
    )


def _place(x: Tensor) -> int | None:
    """The index of an input in the tensor that a loop iterates over; None if the input is not a row of a tensor."""
    whole = x._base
    if whole is None or x.shape != whole.shape[1:] or not (whole.is_contiguous() and x.is_contiguous()):
        return None
    if x.numel() == 0 or whole.is_inference() or (x.dtype, x.requires_grad) != (whole.dtype, whole.requires_grad):
        return None
    place, rest = divmod(int(x.storage_offset()) - int(whole.storage_offset()), x.numel())
    return place if rest == 0 else None


class _Weight:
    """A weight inside the region, and the arguments of :class:`_Product` for it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._held = weight, bias  # keeps their ids unique
        products = _Products()
        if weight.dim() == 3:
            weight = weight.mT  # the second factor of torch.bmm is W^T
        # The bias is detached because its gradient is deferred too.
        self.arguments = deferred_leaf(products, weight, bias), None if bias is None else bias.detach(), products


class _Products:
    """The inputs and gradients of all products with a weight."""

    def __init__(self) -> None:
        self._contributions = Contributions()

    def add(self, x: Tensor, dy: Tensor) -> None:
        self._contributions.add(x.detach(), dy)

    def gradients(self, needed: Sequence[bool]) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of the weight and the bias."""
        found = self._contributions.take()
        if not found:
            return None, None
        x, dy = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2) for parts in zip(*found, strict=True))
        if x.dim() == 3:
            return torch.bmm(x.mT, dy).mT, None  # in the layout of the second factor
        return dy.T @ x, dy.sum(dim=0) if needed[1] else None


class _P:
    """A p inside the region, and the arguments for operations that report its gradient in parts."""

    def __init__(self, p: Tensor) -> None:
        self._held = p  # keeps its id unique
        parts = _Parts(p)
        self.arguments: tuple[Tensor, Callable[[Tensor], None]] = deferred_leaf(parts, p), parts.contributions.add


class _Parts:
    """The gradient of p, as the parts that all calls report."""

    def __init__(self, p: Tensor) -> None:
        self._shape, self._dtype = p.shape, p.dtype
        self.contributions = Contributions()

    def gradients(self, needed: Sequence[bool]) -> tuple[Tensor | None]:
        """The gradient of p."""
        parts = [tensor for (tensor,) in self.contributions.take()]
        if not parts:
            return (None,)
        return (torch.cat(parts).sum(dim=0).view(self._shape).to(self._dtype),)


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


class _Product(torch.autograd.Function):
    """One product with a weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, products: _Products) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.products = products
        return F.linear(x, weight, bias) if weight.dim() == 2 else torch.bmm(x, weight.mT)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, None, None, None]:
        (dy,), (x, weight) = gradients, ctx.saved_tensors
        ctx.products.add(*((_rows(x), _rows(dy)) if weight.dim() == 2 else (x, dy)))
        return dy @ weight if ctx.needs_input_grad[0] else None, None, None, None

"""The scores of additive attention and their gradients by the Triton kernels: float32 on a CUDA device."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noisyact.ops.activation.triton import at, function_constants, readable
from noisyact.ops.triton import check, obstacle, on
from noisyact.pairs import HardPair
from noisyact.schemes import Scheme

__all__ = ["GROUP", "Function", "Noise", "Sums", "add_gradients", "scores", "serves", "sums_for"]

GROUP = 64
"""The last dimension must be a multiple of this number, so that each row begins with a group of the noise."""
_SHARE = 16
"""The number of places that a program of the gradients' kernel processes."""
_AT_ONCE = 4
"""The number of places that such a program loads at a time."""
_SOFT_TANH = (-1, 0.0, False, 1.0, 0.0, -1.0, 1.0, 2)  # NONE and SOFT_TANH of phi.py; importing would import Triton


class Function(NamedTuple):
    """phi without its tensors: a scheme and a pair, or the soft tanh if the scheme is None."""

    scheme: Scheme | None = None
    pair: HardPair | None = None
    stochastic: bool = False


class Noise(NamedTuple):
    """A function with the noise of one call: the last arguments of :func:`scores`."""

    p: Tensor | None
    scale: Tensor | None
    seed: Tensor | None
    function: Function


class Sums(NamedTuple):
    """Gradients summed over several calls. The gradients of v and p are in parts."""

    keys: Tensor
    """The gradient of the keys, [batch, places, size]."""
    v: Tensor
    """The gradient of v in parts, [parts, size]."""
    p: Tensor | None
    """The gradient of p in parts, [parts]; None without a p."""


def serves(keys: Tensor) -> bool:
    """Whether the kernels support these keys, [batch, places, size]."""
    right = keys.dtype == torch.float32 and keys.dim() == 3 and keys.numel() > 0 and keys.shape[2] % GROUP == 0
    return right and keys.numel() < 2**31 and obstacle(keys.device) is None


def scores(
    keys: Tensor, query: Tensor, v: Tensor, p: Tensor | None, scale: Tensor | None, seed: Tensor | None,
    function: Function,
) -> Tensor:  # fmt: skip
    """``e[b, w, s] = sum_a v[a] phi(keys[b, s, a] + query[b, w, a])``.

    Args:
        keys: [batch, places, size]. All tensors but the seed are float32.
        query: [batch, width, size].
        v: [size].
        p: one element, or None for p = 1.
        scale: the scheme's c or sigma; None for the soft tanh.
        seed: one int64; None if no noise is drawn.
        function: phi.
    """
    batch, places, size, width = _sizes(keys, query, v, p)
    e = keys.new_empty(batch, width, places)
    tensors = (
        readable(keys, keys), readable(keys, query), readable(keys, v), p, *_numbers(keys, scale, seed, function), e,
    )  # fmt: skip
    with on(keys.device):
        _launchers(size, function, p is not None, _kind(tensors[4]))[0]((e.numel(),), tensors, (width, places))
    return e


def _sizes(keys: Tensor, query: Tensor, v: Tensor, p: Tensor | None) -> tuple[int, int, int, int]:
    """The batch, places, size and width; raises a ValueError if the kernels do not support the tensors."""
    if keys.dim() != 3 or query.dim() != 3 or keys.shape[2] % GROUP or not (keys.numel() and query.numel()):
        raise ValueError(
            f"keys must be [batch, places, size] and query [batch, width, size], not empty and with a size that is a "
            f"multiple of {GROUP}, not {tuple(keys.shape)} and {tuple(query.shape)}"
        )
    (batch, places, size), width = keys.shape, query.shape[1]
    check(keys, keys=(keys, keys.shape), query=(query, (batch, width, size)), v=(v, (size,)))
    if p is not None:
        check(keys, p=(p.reshape(-1), (1,)))
    return batch, places, size, width


def _numbers(keys: Tensor, scale: Tensor | None, seed: Tensor | None, function: Function) -> tuple[Any, Any]:
    """The scale and the seed in the form that the kernels take."""
    if (scale is None) != (function.scheme is None) or (seed is None) == function.stochastic:
        raise ValueError(
            f"scale={scale}, seed={seed}: a scheme needs a scale, and drawn noise needs a seed: {function}"
        )
    return at(keys, scale), at(keys, seed)


def _kind(scale: Any) -> Any:
    """The type of the scale that a kernel is compiled for: float, or a tensor's dtype."""
    return getattr(scale, "dtype", float)


def sums_for(keys: Tensor, p: Tensor | None) -> Sums:
    """Sums of zeros for keys, [batch, places, size]."""
    batch, places, size = keys.shape
    parts = batch * -(-places // _SHARE)
    tiles = size // (GROUP * _groups(size, 4))
    return Sums(
        torch.zeros(keys.shape, device=keys.device), torch.zeros(parts, size, device=keys.device),
        None if p is None else torch.zeros(parts * tiles, device=keys.device),
    )  # fmt: skip


def add_gradients(
    g: Tensor, keys: Tensor, query: Tensor, v: Tensor, p: Tensor | None, scale: Tensor | None, seed: Tensor | None,
    function: Function, sums: Sums,
) -> Tensor:  # fmt: skip
    """Return the query's gradient for the gradient g of the scores. Add the gradients of keys, v and p to the sums."""
    batch, places, size, width = _sizes(keys, query, v, p)
    tiles, shares = size // (GROUP * _groups(size, 4)), -(-places // _SHARE)
    parts = batch * shares
    check(
        keys, g=(g, (batch, width, places)), sums=(sums.keys, keys.shape), v=(sums.v, (parts, size)),
        p=(sums.p, (parts * tiles,)),
    )  # fmt: skip
    if (sums.p is None) != (p is None):
        raise ValueError("sums.p must be None if and only if p is None")
    gq = keys.new_empty(shares, batch, width, size)
    tensors = (
        readable(keys, g), readable(keys, keys), readable(keys, query), readable(keys, v), p,
        *_numbers(keys, scale, seed, function), gq, *sums,
    )  # fmt: skip
    with on(keys.device):
        _launchers(size, function, p is not None, _kind(tensors[5]))[1](
            (batch, tiles, shares), tensors, (width, places, _SHARE)
        )
    return gq[0] if shares == 1 else gq.sum(dim=0)


def _groups(size: int, most: int) -> int:
    """The number of groups in a tile: the largest power of two up to `most` that divides the groups of a row."""
    count = size // GROUP
    return min(count & -count, most)


@functools.lru_cache(maxsize=64)
def _launchers(size: int, function: Function, has_p: bool, scale_kind: Any) -> tuple[Any, Any]:
    """The launchers of the two kernels. Each launcher always gets tensors of the same dtypes."""
    from noisyact.ops.attention.triton_kernels import gradients_kernel, scores_kernel
    from noisyact.ops.triton.launch import Launcher

    if function.scheme is None or function.pair is None:
        constants: dict[str, Any] = {"EXPECTED": 0.0, "FUNCTION": _SOFT_TANH}
    else:
        constants = function_constants(function.scheme, function.pair, function.stochastic)
    forward, backward = _groups(size, 8), _groups(size, 4)

    def sized(groups: int, warps: int) -> dict[str, Any]:
        return {"TILES": size // (GROUP * groups), "GROUPS": groups, **constants, "num_warps": warps}

    return (
        Launcher(scores_kernel, sized(forward, 1)),  # several warps would have to add their sums in shared memory
        # No limit on registers: with at most 128, which lets more programs run at once, it took 167 us instead of 45.
        Launcher(gradients_kernel, {**sized(backward, max(1, backward // 2)), "AT_ONCE": _AT_ONCE}),
    )

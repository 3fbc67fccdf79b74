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
"""The last dimension is a multiple of this, so that each row begins with a group of the noise."""
_SHARE = 16
"""How many places a program of the gradients' kernel has."""
_AT_ONCE = 4
"""How many of them it loads at a time."""
_SOFT_TANH = (-1, 0.0, False, 1.0, 0.0, -1.0, 1.0, 2)  # phi.py's NONE and SOFT_TANH, not to be imported before Triton


class Function(NamedTuple):
    """phi without its tensors: that of a scheme, or the soft tanh where there is no scheme."""

    scheme: Scheme | None = None
    pair: HardPair | None = None
    stochastic: bool = False


class Noise(NamedTuple):
    """A function with the noise of one call, in the order in which :func:`scores` takes it."""

    p: Tensor | None
    scale: Tensor | None
    seed: Tensor | None
    function: Function


class Sums(NamedTuple):
    """Gradients summed over several calls; those of v and of p are in parts."""

    keys: Tensor
    """[batch, places, size]."""
    v: Tensor
    """[parts, size]."""
    p: Tensor | None
    """[parts]."""


def serves(keys: Tensor) -> bool:
    """Whether the kernels can take such keys, [batch, places, size]."""
    right = keys.dtype == torch.float32 and keys.dim() == 3 and keys.numel() > 0 and keys.shape[2] % GROUP == 0
    return right and keys.numel() < 2**31 and obstacle(keys.device) is None


def scores(
    keys: Tensor, query: Tensor, v: Tensor, p: Tensor | None, scale: Tensor | None, seed: Tensor | None,
    function: Function,
) -> Tensor:  # fmt: skip
    """``e[b, w, s] = sum_a v[a] phi(keys[b, s, a] + query[b, w, a])``.

    Args:
        keys: [batch, places, size], float32, as all tensors here.
        query: [batch, width, size].
        v: [size].
        p: one element, or None for p = 1.
        scale: the scheme's c or sigma; None for the soft tanh.
        seed: one int64; None where nothing is drawn.
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
    """Batch, places, size and width of tensors that the kernels can take."""
    if keys.dim() != 3 or query.dim() != 3 or keys.shape[2] % GROUP or not (keys.numel() and query.numel()):
        raise ValueError(
            f"keys [batch, places, size] and query [batch, width, size], with elements and a size that is a multiple "
            f"of {GROUP}, are wanted, not {tuple(keys.shape)} and {tuple(query.shape)}"
        )
    (batch, places, size), width = keys.shape, query.shape[1]
    check(keys, keys=(keys, keys.shape), query=(query, (batch, width, size)), v=(v, (size,)))
    if p is not None:
        check(keys, p=(p.reshape(-1), (1,)))
    return batch, places, size, width


def _numbers(keys: Tensor, scale: Tensor | None, seed: Tensor | None, function: Function) -> tuple[Any, Any]:
    """The scale and the seed as the kernels take them."""
    if (scale is None) != (function.scheme is None) or (seed is None) == function.stochastic:
        raise ValueError(
            f"scale={scale}, seed={seed}: a scheme has a scale, and noise that is drawn a seed: {function}"
        )
    return at(keys, scale), at(keys, seed)


def _kind(scale: Any) -> Any:
    """What a kernel is compiled for: a number, or a tensor of a dtype."""
    return getattr(scale, "dtype", float)


def sums_for(keys: Tensor, p: Tensor | None) -> Sums:
    """Sums that are zero, for keys, [batch, places, size]."""
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
    """Return the query's gradient, given the gradient g of the scores; add those of keys, v and p to the sums."""
    batch, places, size, width = _sizes(keys, query, v, p)
    tiles, shares = size // (GROUP * _groups(size, 4)), -(-places // _SHARE)
    parts = batch * shares
    check(
        keys, g=(g, (batch, width, places)), sums=(sums.keys, keys.shape), v=(sums.v, (parts, size)),
        p=(sums.p, (parts * tiles,)),
    )  # fmt: skip
    if (sums.p is None) != (p is None):
        raise ValueError("the gradient of p has a place exactly where there is a p")
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
    """Groups of a tile: the largest power of two, up to `most`, that divides the groups of a row."""
    count = size // GROUP
    return min(count & -count, most)


@functools.lru_cache(maxsize=64)
def _launchers(size: int, function: Function, has_p: bool, scale_kind: Any) -> tuple[Any, Any]:
    """The launchers of the scores' and of the gradients' kernel; each always takes tensors of the same dtypes."""
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
        Launcher(scores_kernel, sized(forward, 1)),  # with more warps their sums would have to meet in shared memory
        # Not told how many registers to take: with at most 128, for more programs at once, it took 167 us for 45.
        Launcher(gradients_kernel, {**sized(backward, max(1, backward // 2)), "AT_ONCE": _AT_ONCE}),
    )

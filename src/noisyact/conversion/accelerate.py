"""Conversion of torch's recurrent layers to the same layers on noisyact's kernels."""

from __future__ import annotations

import warnings

from torch import nn

from noisyact.activations import check_model
from noisyact.conversion.inventory import Found, in_words
from noisyact.conversion.replacing import (
    OURS,
    FilterFn,
    Model,
    check_filter,
    copy_sharing_tensors,
    like,
    remember,
    replace,
    take_over,
)
from noisyact.conversion.saturating import RECURRENT, recurrent_obstacle
from noisyact.conversion.summary import summary
from noisyact.recurrent import backends
from noisyact.recurrent.layers import NoisyRecurrent

__all__ = ["accelerate"]


def accelerate(
    model: Model, *, filter_fn: FilterFn | None = None, inplace: bool = False, verbose: bool = False
) -> Model:
    """Replace a model's nn.LSTM, nn.GRU and nn.RNN by the same layers on noisyact's kernels where these are faster.

    A replaced layer is a NoisyLSTM, NoisyGRU or NoisyRNN with ``hard=False, noise=None``: it computes the same function
    without noise. Outputs and gradients agree with torch's layer within the rounding of the dtype. The Parameter
    objects, the keys of the state_dict, names, training flag, hooks, device and dtype are the same, so an existing
    optimiser and existing checkpoints still work. A layer used in several places is replaced by one layer. Cells and
    all other modules stay.

    A layer is replaced if a kernel is faster for its kind, number of units, device and dtype, so move the model to its
    device first. At each call a replaced layer uses torch's own layer if that is faster for the input's sizes; see
    :mod:`noisyact.recurrent.routing` for the rule. :func:`noisyact.denoisify` restores torch's layers.

    Args:
        model: any module.
        filter_fn: a function of a module of the given model and its dotted name that returns whether to replace it.
        inplace: modify the model instead of a copy that shares its tensors.
        verbose: print what was replaced, what was left, and why.

    Returns: the accelerated model. If nothing was replaced, a warning gives the reason.

    >>> import torch
    >>> gru = nn.GRU(4, 8)
    >>> fast, x = accelerate(gru, verbose=True), torch.randn(5, 3, 4)
    what      module       type  now, or why not
    replaced  (the model)  GRU   NoisyGRU
    >>> torch.testing.assert_close(fast(x), gru(x))
    """
    check_model(model)
    check_filter(filter_fn)
    given = model
    if not inplace:
        model = copy_sharing_tensors(model)
    counterparts = dict(zip(model.modules(), given.modules(), strict=True))
    replaced: list[Found] = []
    left: list[Found] = []

    def make(old: nn.Module, name: str, home: nn.Module) -> nn.Module | None:
        if not isinstance(old, (*RECURRENT, NoisyRecurrent)):
            return None
        why = _obstacle(old)
        if why is None and not (filter_fn is None or filter_fn(counterparts[old], name)):
            why = "filter_fn excludes it"
        if why is not None:
            left.append(Found(name, type(old).__name__, why=why))
            return None
        new = like(old, OURS[type(old)], hard=False, noise=None)
        remember(old, new)
        replaced.append(Found(name, type(old).__name__, why=type(new).__name__))
        return take_over(old, new)

    model = replace(model, make)
    if not replaced:
        why = in_words(left) or "it has no recurrent layer"
        warnings.warn(f"accelerate replaced nothing in {type(model).__name__}: {why}.", stacklevel=2)
    if verbose:
        print(summary(replaced, left))
    return model


def _obstacle(module: nn.Module) -> str | None:
    """The reason why accelerate does not replace a recurrent layer or cell; None if it does."""
    if isinstance(module, NoisyRecurrent):
        return "is noisyact's already"
    if isinstance(module, nn.RNNCellBase):
        return "is a cell, and accelerate replaces whole layers"
    return recurrent_obstacle(module) or backends.why_never(module)

"""Conversion of an existing model to a noisy one, and back."""

from __future__ import annotations

import dataclasses
import warnings

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from noisyact.activations import NoisyActivation, NoisyHardSigmoid, NoisyHardTanh, NoisyModule, NoisyReLU, check_model
from noisyact.conversion.inventory import Found, in_words, inventory
from noisyact.conversion.replacing import (
    OURS,
    FilterFn,
    Model,
    check_filter,
    copy_sharing_tensors,
    is_substitute,
    like,
    original,
    remember,
    replace,
    take_over,
)
from noisyact.conversion.saturating import (
    COMPUTED,
    RECURRENT,
    SUBCLASS,
    holds_weights,
    is_activation,
    obstacle,
    pair_of,
)
from noisyact.conversion.summary import summary
from noisyact.pairs import HARD_SIGMOID, RELU, HardPair, Pair
from noisyact.recurrent.cells import NoisyCell
from noisyact.recurrent.layers import NoisyRecurrent
from noisyact.recurrent.noise import recurrent_noise
from noisyact.schemes import NAH, Scheme, scheme

__all__ = ["denoisify", "noisify"]

_ACTIVATIONS = (NoisyActivation, NoisyHardTanh, NoisyHardSigmoid, NoisyReLU)


def noisify(
    model: Model,
    noise: Scheme | str = NAH(),  # noqa: B008  (schemes are immutable)
    *,
    gate_noise: Scheme | str | None = None,
    filter_fn: FilterFn | None = None,
    inplace: bool = False,
    strict: bool = False,
    eval_noise: str = "expectation",
    verbose: bool = False,
) -> Model:
    """Replace the saturating activations and recurrent layers of a model by noisy ones.

    nn.Tanh and nn.Softsign become a noisy hard tanh, and nn.Sigmoid a noisy hard sigmoid. nn.Hardtanh, nn.ReLU6 and
    nn.Hardsigmoid become noisy and keep their range and slope. nn.LSTM, nn.GRU, nn.RNN (with tanh) and their cells
    become NoisyLSTM and so on and keep their weights. A layer that :func:`noisyact.accelerate` has replaced counts as
    the torch layer that it was. Names, device, dtype, training flag and hooks are preserved. A module used in several
    places is replaced by one module. The model itself may be one of these modules.

    The noisy model uses the same Parameter objects, even if ``inplace=False`` returns a copy: an existing optimiser
    still works, and both models share their weights (use copy.deepcopy first for independent ones). Each noisy
    activation has a new parameter p. Add these to the optimiser with
    ``optimizer.add_param_group({"params": list(noise_parameters(model))})``.

    Args:
        model: any module.
        noise: a scheme or its text.
        gate_noise: the scheme for sigmoids; the same as ``noise`` if None.
        filter_fn: a function of a module of the given model and its dotted name that returns whether to replace it.
        inplace: modify the model instead of a copy that shares its tensors.
        strict: raise an error and restore the model if any saturating part remains. This includes function calls such
            as ``torch.tanh(x)`` in the source of a forward method; :func:`noisyact.inventory` with inputs finds such
            calls by running the model.
        eval_noise: the evaluation rule of the noisy modules, as in ``NoisyActivation``. ``"binary"`` is for gates, the
            sigmoids and the layers and cells that have them; the tanh get ``"expectation"``.
        verbose: print what was replaced, what was left, and why.

    Returns: the noisy model. If nothing was replaced, a warning gives the reason.

    >>> model = noisify(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), "nah:c=0.3")
    >>> model[1]
    NoisyHardTanh(NAH(c=0.3, alpha=1.15, clip=False), num_parameters=1)
    >>> _ = noisify(nn.Sequential(nn.Tanh(), nn.GELU()), verbose=True)
    what      module  type  now, or why not
    replaced  0       Tanh  NoisyHardTanh
    left      1       GELU  does not saturate on both sides
    """
    check_model(model)
    check_filter(filter_fn)
    noise = scheme(noise)
    gate_noise = noise if gate_noise is None else scheme(gate_noise)
    given = model
    if not inplace:
        model = copy_sharing_tensors(model)
    counterparts = dict(zip(model.modules(), given.modules(), strict=True))
    made: dict[nn.Module, nn.Module] = {}
    replaced: list[Found] = []
    excluded: set[str] = set()

    def make(module: nn.Module, name: str, home: nn.Module) -> nn.Module | None:
        old = original(module) if _accelerated(module) else module
        if old is None or not is_activation(old) or obstacle(old) is not None:
            return None
        if not (filter_fn is None or filter_fn(counterparts[module], name)):
            excluded.add(name)
            return None
        if isinstance(old, RECURRENT):
            new = _noisy_recurrent(old, noise, gate_noise, eval_noise)
        else:
            new = _noisy_activation(old, noise, gate_noise, eval_noise, *_place(home, model))
        remember(old, new)
        made[new] = module
        replaced.append(Found(name, type(module).__name__, why=type(new).__name__))
        return take_over(module, new)

    model = replace(model, make)
    if strict:
        found = inventory(model)
        if not found.complete:
            replace(model, lambda new, name, home: made.get(new))
            raise ValueError(f"strict=True, and saturating parts remain:\n{found}")
    if verbose or not made:
        found = inventory(model)
        left = [
            dataclasses.replace(part, why="filter_fn excludes it") if part.name in excluded else part
            for part in (*found.saturating, *found.others)
        ]
        left += found.calls
        if not made:
            already = f"{len(found.noisy)} already noisy" if found.noisy else ""
            why = "; ".join(filter(None, (in_words(left), already))) or "it has no activation"
            warnings.warn(f"noisify replaced nothing in {type(model).__name__}: {why}.", stacklevel=2)
        if verbose:
            print(summary(replaced, left))
    return model


def denoisify(model: Model, *, inplace: bool = False, verbose: bool = False) -> Model:
    """Replace noisyact's modules in a model by torch modules: the inverse of :func:`noisify`.

    A module that noisify or :func:`noisyact.accelerate` replaced is restored. A noisy module that was constructed
    directly becomes a torch module with the same weights: nn.Hardtanh, nn.Hardsigmoid or nn.ReLU, which compute the
    same function without noise, or the soft module if torch has no hard one: nn.Sigmoid, nn.LSTM, nn.GRU, nn.RNN and
    their cells. Modules without a torch counterpart stay noisy, and a warning names them.

    Args:
        model: any module.
        inplace: modify the model instead of a copy that shares its tensors.
        verbose: print what was replaced, what was left, and why.

    >>> denoisify(noisify(nn.Sequential(nn.Hardtanh(-2, 2))))
    Sequential(
      (0): Hardtanh(min_val=-2, max_val=2)
    )
    >>> from noisyact import NoisyLSTM
    >>> denoisify(NoisyLSTM(4, 8, batch_first=True))
    LSTM(4, 8, batch_first=True)
    """
    check_model(model)
    if not inplace:
        model = copy_sharing_tensors(model)
    replaced: list[Found] = []

    def restore(module: nn.Module, name: str, home: nn.Module) -> nn.Module | None:
        old = original(module)
        if old is None:
            old = _counterpart(module)
        if old is None:
            return None
        replaced.append(Found(name, type(module).__name__, why=type(old).__name__))
        return take_over(module, old)

    model = replace(model, restore)
    left = [dataclasses.replace(part, why=_why_noisy(model, part.name)) for part in inventory(model).noisy]
    left += [
        Found(name, type(part).__name__, why=COMPUTED) for name, part in model.named_modules() if _accelerated(part)
    ]
    if left:
        named = "; ".join(f"{part.name or 'it'}: {part.kind}, {part.why}" for part in left)
        warnings.warn(f"denoisify left parts of {type(model).__name__} unchanged: {named}", stacklevel=2)
    elif not replaced:
        warnings.warn(f"denoisify found nothing noisy in {type(model).__name__}", stacklevel=2)
    if verbose:
        print(summary(replaced, left))
    return model


def _accelerated(module: nn.Module) -> bool:
    return isinstance(module, NoisyRecurrent) and module.noise is None and is_substitute(module)


def _counterpart(noisy: nn.Module) -> nn.Module | None:
    """The torch module with the weights of a noisy module that was constructed directly; None if there is none."""
    if type(noisy) in _ACTIVATIONS and isinstance(noisy, NoisyActivation):
        return _plain_activation(noisy.pair)
    if type(noisy) not in OURS.values() or not holds_weights(noisy):
        return None
    assert isinstance(noisy, (NoisyRecurrent, NoisyCell))
    if noisy.noise is None or noisy.zoneout or noisy.recurrent_dropout:
        return None
    return like(noisy, next(kind for kind, ours in OURS.items() if ours is type(noisy)))


def _plain_activation(pair: HardPair | Pair) -> nn.Module | None:
    if not isinstance(pair, HardPair):
        return None
    if pair == RELU:
        return nn.ReLU()
    if (pair.slope, pair.offset) == (1.0, 0.0):
        return nn.Hardtanh(pair.low, pair.high)
    return nn.Sigmoid() if pair == HARD_SIGMOID else nn.Hardsigmoid() if pair == pair_of(nn.Hardsigmoid()) else None


def _why_noisy(model: nn.Module, name: str) -> str:
    """The reason why denoisify does not replace a noisy module."""
    module = model.get_submodule(name)
    if isinstance(module, (NoisyRecurrent, NoisyCell)) and (module.zoneout or module.recurrent_dropout):
        return "torch has no zoneout and no recurrent dropout"
    if type(module) in OURS.values() or is_parametrized(module):
        return COMPUTED
    return "torch has no such function" if type(module) in _ACTIVATIONS else SUBCLASS


def _noisy_activation(
    old: nn.Module,
    noise: Scheme,
    gate_noise: Scheme,
    eval_noise: str,
    device: torch.device | None,
    dtype: torch.dtype | None,
) -> NoisyModule:
    pair = pair_of(old)
    assert pair is not None
    if isinstance(old, (nn.Sigmoid, nn.Hardsigmoid)):
        return NoisyHardSigmoid(gate_noise, device=device, dtype=dtype, eval_noise=eval_noise, slope=pair.slope)
    eval_noise = "expectation" if eval_noise == "binary" else eval_noise  # it is for gates
    return NoisyHardTanh(noise, device=device, dtype=dtype, eval_noise=eval_noise, min_val=pair.low, max_val=pair.high)


def _noisy_recurrent(old: nn.Module, noise: Scheme, gate_noise: Scheme, eval_noise: str) -> nn.Module:
    """The noisy layer or cell with the same Parameter objects as the old one."""
    eval_noise = "expectation" if eval_noise == "binary" and isinstance(old, (nn.RNN, nn.RNNCell)) else eval_noise
    weight = next(old.parameters())
    new = like(old, OURS[type(old)], noise=None)
    names = new.noise_names() if isinstance(new, NoisyRecurrent) else ["p"]
    new.noise = recurrent_noise(
        new.kind, noise, gate_noise, names, new.hidden_size, eval_noise, weight.device, weight.dtype
    )
    return new


def _place(home: nn.Module, model: nn.Module) -> tuple[torch.device | None, torch.dtype | None]:
    """The device and dtype for p: the same as for the nearest floating-point parameter."""
    for module in (home, model):
        for parameter in module.parameters():
            if parameter.is_floating_point():
                return parameter.device, parameter.dtype
    return None, None

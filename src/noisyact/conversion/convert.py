"""Conversion of an existing model to a noisy one, and back."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from noisyact.activations import NoisyActivation, NoisyHardSigmoid, NoisyHardTanh, NoisyModule, NoisyReLU, check_model
from noisyact.conversion.inventory import inventory
from noisyact.conversion.saturating import (
    COMPUTED,
    RECURRENT,
    SUBCLASS,
    holds_weights,
    is_activation,
    obstacle,
    pair_of,
)
from noisyact.pairs import HARD_SIGMOID, RELU, HardPair, Pair
from noisyact.recurrent.cells import NoisyCell, NoisyGRUCell, NoisyLSTMCell, NoisyRNNCell
from noisyact.recurrent.layers import NoisyGRU, NoisyLSTM, NoisyRecurrent, NoisyRNN
from noisyact.recurrent.noise import recurrent_noise
from noisyact.schemes import NAH, Scheme, scheme

__all__ = ["denoisify", "noisify"]

FilterFn = Callable[[nn.Module, str], bool]

_NOISY: dict[type[nn.Module], type[nn.Module]] = {
    nn.LSTM: NoisyLSTM, nn.GRU: NoisyGRU, nn.RNN: NoisyRNN,
    nn.LSTMCell: NoisyLSTMCell, nn.GRUCell: NoisyGRUCell, nn.RNNCell: NoisyRNNCell,
}  # fmt: skip
_ACTIVATIONS = (NoisyActivation, NoisyHardTanh, NoisyHardSigmoid, NoisyReLU)


def noisify(
    model: nn.Module,
    noise: Scheme | str = NAH(),  # noqa: B008  (schemes are immutable)
    *,
    gate_noise: Scheme | str | None = None,
    filter_fn: FilterFn | None = None,
    inplace: bool = False,
    strict: bool = False,
    eval_noise: str = "expectation",
) -> nn.Module:
    """Replace the saturating activations and recurrent layers of a model by noisy ones.

    nn.Tanh becomes a noisy hard tanh and nn.Sigmoid a noisy hard sigmoid. nn.Hardtanh and nn.Hardsigmoid become noisy
    and keep their range and slope. nn.LSTM, nn.GRU, nn.RNN (with tanh) and their cells become NoisyLSTM and so on and
    keep their weights. Names, device, dtype, training flag and hooks are preserved. A module used in several places is
    replaced by one module. The model itself may be one of these modules.

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
        eval_noise: the evaluation rule of the noisy modules, as in NoisyActivation.

    Returns: the noisy model. ``print(inventory(model))`` lists what is noisy, what is not, and why. If nothing was
    replaced, a warning gives the reason.

    >>> model = noisify(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), "nah:c=0.3")
    >>> model[1]
    NoisyHardTanh(NAH(c=0.3, alpha=1.15, clip=False), num_parameters=1)
    """
    check_model(model)
    if not (filter_fn is None or callable(filter_fn)):
        raise TypeError(f"filter_fn must be a function of a module and its name, not {filter_fn!r}")
    noise = scheme(noise)
    gate_noise = noise if gate_noise is None else scheme(gate_noise)
    given = model
    if not inplace:
        model = _copy_sharing_tensors(model)
    counterparts = dict(zip(model.modules(), given.modules(), strict=True))
    made: dict[nn.Module, nn.Module] = {}

    def make(old: nn.Module, name: str, home: nn.Module) -> nn.Module | None:
        if not is_activation(old) or obstacle(old) is not None:
            return None
        if not (filter_fn is None or filter_fn(counterparts[old], name)):
            return None
        if isinstance(old, RECURRENT):
            new = _noisy_recurrent(old, noise, gate_noise, eval_noise)
        else:
            new = _noisy_activation(old, noise, gate_noise, eval_noise, *_place(home, model))
        new.training = old.training
        _share_hooks(old, new)
        new.__dict__["_replaced"] = (old,)  # in a tuple it is copied and pickled, but it is not a submodule
        made[new] = old
        return new

    model = _replace(model, make)
    if strict:
        left = inventory(model)
        if not left.complete:
            _replace(model, lambda new, name, home: made.get(new))
            raise ValueError(f"strict=True, and saturating parts remain:\n{left}")
    if not made:
        left = inventory(model)
        already = f"{len(left.noisy)} already noisy" if left.noisy else ""
        why = "; ".join(filter(None, (left.left, already))) or "it has no activation"
        filtered = " filter_fn may have excluded modules that it replaces." if filter_fn is not None else ""
        warnings.warn(f"noisify replaced nothing in {type(model).__name__}: {why}.{filtered}", stacklevel=2)
    return model


def denoisify(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """Replace the noisy modules of a model by torch modules: the inverse of :func:`noisify`.

    A module that noisify replaced is restored. A noisy module that was constructed directly becomes a torch module with
    the same weights: nn.Hardtanh, nn.Hardsigmoid or nn.ReLU, which compute the same function without noise, or the
    soft module if torch has no hard one: nn.Sigmoid, nn.LSTM, nn.GRU, nn.RNN and their cells. Modules without a torch
    counterpart stay noisy, and a warning names them.

    >>> denoisify(noisify(nn.Sequential(nn.Hardtanh(-2, 2))))
    Sequential(
      (0): Hardtanh(min_val=-2, max_val=2)
    )
    >>> denoisify(NoisyLSTM(4, 8, batch_first=True))
    LSTM(4, 8, batch_first=True)
    """
    check_model(model)
    if not inplace:
        model = _copy_sharing_tensors(model)
    restored = []

    def restore(noisy: nn.Module, name: str, home: nn.Module) -> nn.Module | None:
        kept = noisy.__dict__.get("_replaced")
        original = _counterpart(noisy) if kept is None else kept[0]
        if original is None:
            return None
        original.training = noisy.training
        _adopt_parameters(noisy, original)
        _share_hooks(noisy, original)
        restored.append(original)
        return original

    model = _replace(model, restore)
    left = inventory(model).noisy
    if left:
        named = "; ".join(f"{part.name or 'it'}: {part.kind}, {_why_noisy(model, part.name)}" for part in left)
        warnings.warn(f"denoisify left parts of {type(model).__name__} noisy: {named}", stacklevel=2)
    elif not restored:
        warnings.warn(f"denoisify found nothing noisy in {type(model).__name__}", stacklevel=2)
    return model


def _counterpart(noisy: nn.Module) -> nn.Module | None:
    """The torch module, without weights, for a noisy module that was constructed directly; None if there is none."""
    if type(noisy) in _ACTIVATIONS and isinstance(noisy, NoisyActivation):
        return _plain_activation(noisy.pair)
    if type(noisy) not in _NOISY.values() or not holds_weights(noisy):
        return None
    assert isinstance(noisy, (NoisyRecurrent, NoisyCell))
    if noisy.noise is None:
        return None
    kind = next(kind for kind, ours in _NOISY.items() if ours is type(noisy))
    settings: dict[str, Any] = {"nonlinearity": noisy.kind.removeprefix("rnn_")} if noisy.kind.startswith("rnn") else {}
    return _like(noisy, kind, settings)


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
    if type(module) in _NOISY.values():
        return COMPUTED
    return "torch has no such function" if type(module) in _ACTIVATIONS else SUBCLASS


def _replace(model: nn.Module, make: Callable[[nn.Module, str, nn.Module], nn.Module | None]) -> nn.Module:
    """Replace the modules for which `make` returns a substitute. A module used several times gets one substitute."""
    substitutes: dict[nn.Module | None, nn.Module] = {}
    for name, module in model.named_modules():
        new = make(module, name, model.get_submodule(name.rpartition(".")[0]))
        if new is not None:
            substitutes[module] = new
    for home in list(model.modules()):
        for slot, child in home._modules.items():
            if child in substitutes:
                home._modules[slot] = substitutes[child]
    return substitutes.get(model, model)


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
    return NoisyHardTanh(noise, device=device, dtype=dtype, eval_noise=eval_noise, min_val=pair.low, max_val=pair.high)


def _noisy_recurrent(old: nn.Module, noise: Scheme, gate_noise: Scheme, eval_noise: str) -> nn.Module:
    """The noisy layer or cell with the same Parameter objects as the old one."""
    weight = next(old.parameters())
    new = _like(old, _NOISY[type(old)], {"noise": None})
    names = new.noise_names() if isinstance(new, NoisyRecurrent) else ["p"]
    new.noise = recurrent_noise(
        new.kind, noise, gate_noise, names, new.hidden_size, eval_noise, weight.device, weight.dtype
    )
    _adopt_parameters(old, new)
    return new


def _like(old: Any, kind: type[nn.Module], settings: dict[str, Any]) -> Any:
    """A recurrent layer or cell of another class with the same settings."""
    names = ["bias"]
    if isinstance(old, nn.RNNBase):
        names += ["num_layers", "batch_first", "bidirectional", *(["proj_size"] if old.mode == "LSTM" else [])]
    settings = {**settings, **{name: getattr(old, name) for name in names}}
    # The meta device avoids drawing initial weights that would be discarded.
    new: Any = kind(old.input_size, old.hidden_size, **settings, device="meta")
    if isinstance(old, nn.RNNBase):
        new.dropout = old.dropout
    return new


def _adopt_parameters(source: nn.Module, target: nn.Module) -> None:
    """Give the target the source's Parameter objects, by name."""
    for name in target._parameters:
        if name in source._parameters:
            target._parameters[name] = source._parameters[name]
    if isinstance(target, nn.RNNBase):
        target._init_flat_weights()


def _share_hooks(source: nn.Module, target: nn.Module) -> None:
    for key, value in source.__dict__.items():
        if "hook" in key:
            target.__dict__[key] = value  # the same dictionaries, so that existing handles can still remove their hooks


def _place(home: nn.Module, model: nn.Module) -> tuple[torch.device | None, torch.dtype | None]:
    """The device and dtype for p: the same as for the nearest floating-point parameter."""
    for module in (home, model):
        for parameter in module.parameters():
            if parameter.is_floating_point():
                return parameter.device, parameter.dtype
    return None, None


def _copy_sharing_tensors(model: nn.Module) -> nn.Module:
    tensors = [*model.parameters(), *model.buffers()]
    # Include computed tensors, such as the weight under spectral_norm, because deepcopy refuses to copy them.
    tensors += [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})

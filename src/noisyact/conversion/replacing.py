"""Replacement of modules in a model: what noisify, denoisify and accelerate share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn

from noisyact.conversion.saturating import holds_weights
from noisyact.recurrent.cells import NoisyGRUCell, NoisyLSTMCell, NoisyRNNCell
from noisyact.recurrent.layers import NoisyGRU, NoisyLSTM, NoisyRNN

__all__ = [
    "OURS", "FilterFn", "Model", "check_filter", "copy_sharing_tensors", "is_substitute", "like", "original",
    "remember", "replace", "take_over",
]  # fmt: skip

FilterFn = Callable[[nn.Module, str], bool]

Model = TypeVar("Model", bound=nn.Module)
"""The type of a model, which its conversion keeps unless the model itself is replaced."""

OURS: dict[type[nn.Module], type[nn.Module]] = {
    nn.LSTM: NoisyLSTM, nn.GRU: NoisyGRU, nn.RNN: NoisyRNN,
    nn.LSTMCell: NoisyLSTMCell, nn.GRUCell: NoisyGRUCell, nn.RNNCell: NoisyRNNCell,
}  # fmt: skip
"""noisyact's class for each recurrent class of torch."""


def check_filter(filter_fn: FilterFn | None) -> None:
    """Raise a TypeError unless the filter is None or a function."""
    if not (filter_fn is None or callable(filter_fn)):
        raise TypeError(f"filter_fn must be a function of a module and its name, not {filter_fn!r}")


def replace(model: Model, make: Callable[[nn.Module, str, nn.Module], nn.Module | None]) -> Model:
    """Replace the modules for which `make` returns a substitute. A module used several times gets one substitute.

    Args:
        make: a function of a module, its dotted name and the module that contains it.

    Returns: the model, or its substitute if the model itself is replaced.
    """
    substitutes: dict[nn.Module | None, nn.Module] = {}
    for name, module in model.named_modules():
        new = make(module, name, model.get_submodule(name.rpartition(".")[0]))
        if new is not None:
            substitutes[module] = new
    for home in list(model.modules()):
        for slot, child in home._modules.items():
            if child in substitutes:
                home._modules[slot] = substitutes[child]
    replaced: Any = substitutes.get(model, model)
    return replaced


def take_over(old: nn.Module, new: nn.Module) -> nn.Module:
    """Give a substitute the training flag and the hooks of the module it replaces, and return it."""
    new.training = old.training
    for key, value in old.__dict__.items():
        if "hook" in key:
            new.__dict__[key] = value  # the same dictionaries, so that existing handles can still remove their hooks
    return new


def remember(old: nn.Module, new: nn.Module) -> None:
    """Record the torch module that a substitute replaces, for :func:`original`."""
    new.__dict__["_replaced"] = (old,)  # in a tuple it is copied and pickled, but it is not a submodule


def original(new: nn.Module) -> nn.Module | None:
    """The torch module that a substitute replaces, with the substitute's weights; None if there is none.

    A recurrent substitute whose weights are computed, as under weight_norm, has no weights for the torch module.
    """
    if not is_substitute(new) or (isinstance(new, (nn.RNNBase, nn.RNNCellBase)) and not holds_weights(new)):
        return None
    (old,) = new.__dict__["_replaced"]
    _adopt_parameters(new, old)
    return old


def is_substitute(module: nn.Module) -> bool:
    """Whether noisify or accelerate has put the module in the place of a torch module."""
    return "_replaced" in module.__dict__


def like(old: Any, kind: type[nn.Module], **settings: Any) -> Any:
    """A recurrent layer or cell of another class with the same settings and the same Parameter objects."""
    names = ["bias"]
    if isinstance(old, nn.RNNBase):
        names += ["num_layers", "batch_first", "bidirectional", *(["proj_size"] if old.mode == "LSTM" else [])]
    if hasattr(old, "nonlinearity"):
        names.append("nonlinearity")
    settings |= {name: getattr(old, name) for name in names}
    # The meta device avoids drawing initial weights that would be discarded.
    new: Any = kind(old.input_size, old.hidden_size, **settings, device="meta")
    if isinstance(old, nn.RNNBase):
        new.dropout = old.dropout  # not an argument, because torch warns about dropout in a single layer
    _adopt_parameters(old, new)
    return new


def _adopt_parameters(source: nn.Module, target: nn.Module) -> None:
    """Give the target the source's Parameter objects, by name."""
    for name in target._parameters:
        if name in source._parameters:
            target._parameters[name] = source._parameters[name]
    if isinstance(target, nn.RNNBase):
        target._init_flat_weights()


def copy_sharing_tensors(model: Model) -> Model:
    """Copy a model's modules but not its tensors."""
    tensors = [*model.parameters(), *model.buffers()]
    # Include computed tensors, such as the weight under spectral_norm, because deepcopy refuses to copy them.
    tensors += [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})

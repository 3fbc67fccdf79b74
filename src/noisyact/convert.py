"""Makes an existing model noisy, and undoes it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from noisyact.activations import NoisyHardSigmoid, NoisyHardTanh, NoisyModule, check_model
from noisyact.cell_noise import recurrent_noise
from noisyact.cells import NoisyGRUCell, NoisyLSTMCell, NoisyRNNCell
from noisyact.inventory import inventory
from noisyact.recurrent import NoisyGRU, NoisyLSTM, NoisyRNN
from noisyact.saturating import RECURRENT, is_saturating, pair_of
from noisyact.schemes import NAH, Scheme, scheme

__all__ = ["denoisify", "noisify"]

FilterFn = Callable[[nn.Module, str], bool]


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

    nn.Tanh becomes a noisy hard tanh and nn.Sigmoid a noisy hard sigmoid; nn.Hardtanh and nn.Hardsigmoid keep their own
    range and slope and become noisy; nn.LSTM, nn.GRU, nn.RNN (with tanh) and their cells become NoisyLSTM and so on and
    keep their weights. Names, device, dtype, train flag and hooks stay; a module used in several places stays one
    module; the model itself may be such a module.

    The model's Parameter objects stay the very same, also in the copy that ``inplace=False`` returns: an optimiser
    made before goes on working, and the two models share their weights (deepcopy first for independent ones). Each
    noisy activation has a new parameter p; hand those to the optimiser with
    ``optimizer.add_param_group({"params": list(noise_parameters(model))})``.

    Args:
        model: any module.
        noise: a scheme or its text.
        gate_noise: the scheme for sigmoids, when it differs.
        filter_fn: (module, its dotted name) -> whether to replace it; the module is that of the model given.
        inplace: change the model itself rather than a copy that shares its tensors.
        strict: raise if anything saturating remains, a function call such as ``torch.tanh(x)`` in a forward method
            included (found in the source; :func:`noisyact.inventory` with inputs finds them by running). The model
            is then as it was before.
        eval_noise: what the noisy activations do in evaluation mode.

    Returns: the noisy model.

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
        recurrent = _has_noisy_version(old)
        if not (recurrent or pair_of(old)) or not (filter_fn is None or filter_fn(counterparts[old], name)):
            return None
        if recurrent:
            new = _noisy_recurrent(old, noise, gate_noise, eval_noise)
        else:
            new = _noisy_activation(old, noise, gate_noise, eval_noise, *_place(home, model))
        new.training = old.training
        _share_hooks(old, new)
        new.__dict__["_replaced"] = (old,)  # in a tuple: not a submodule, yet copied and pickled along
        made[new] = old
        return new

    model = _replace(model, make)
    if strict:
        left = inventory(model)
        if not left.complete:
            _replace(model, lambda new, name, home: made.get(new))
            raise ValueError(f"strict=True, and saturating parts remain:\n{left}")
    return model


def denoisify(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """Undo :func:`noisify`: put back the very activations it replaced. Noisy modules built by hand stay.

    >>> denoisify(noisify(nn.Sequential(nn.Hardtanh(-2, 2))))
    Sequential(
      (0): Hardtanh(min_val=-2, max_val=2)
    )
    """
    check_model(model)
    if not inplace:
        model = _copy_sharing_tensors(model)

    def restore(noisy: nn.Module, name: str, home: nn.Module) -> nn.Module | None:
        kept = noisy.__dict__.get("_replaced")
        if kept is None:
            return None
        (original,) = kept
        original.training = noisy.training
        _adopt_parameters(noisy, original)
        _share_hooks(noisy, original)
        return original

    return _replace(model, restore)


def _replace(model: nn.Module, make: Callable[[nn.Module, str, nn.Module], nn.Module | None]) -> nn.Module:
    """Replace what `make` gives a substitute for, each module once, wherever and however often it stands."""
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


def _has_noisy_version(module: nn.Module) -> bool:
    """Whether it is a saturating recurrent layer or cell of torch's that holds the weights it computes with.

    Weight normalisation and pruning put other parameters in their place and recompute the weights at every call.
    """
    if type(module) not in RECURRENT or not is_saturating(module):
        return False
    assert isinstance(module, (nn.RNNBase, nn.RNNCellBase))
    cell = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    names = [name for layer in module._all_weights for name in layer] if isinstance(module, nn.RNNBase) else cell
    return set(names) == module._parameters.keys()


def _noisy_recurrent(old: nn.Module, noise: Scheme, gate_noise: Scheme, eval_noise: str) -> nn.Module:
    """The noisy layer or cell with the very weights of the old one."""
    weight = next(old.parameters())
    if isinstance(old, nn.RNNBase):
        kinds = {nn.LSTM: NoisyLSTM, nn.GRU: NoisyGRU, nn.RNN: NoisyRNN}
        settings = {name: getattr(old, name) for name in ("num_layers", "bias", "batch_first", "bidirectional")}
        if isinstance(old, nn.LSTM):
            settings["proj_size"] = old.proj_size
        # On the meta device: no weights are drawn only to be thrown away.
        new = kinds[type(old)](old.input_size, old.hidden_size, **settings, noise=None, device="meta")
        new.dropout = old.dropout
        names = new.noise_names()
    else:
        assert isinstance(old, nn.RNNCellBase)
        kinds = {nn.LSTMCell: NoisyLSTMCell, nn.GRUCell: NoisyGRUCell, nn.RNNCell: NoisyRNNCell}
        new = kinds[type(old)](old.input_size, old.hidden_size, old.bias, noise=None, device="meta")
        names = ["p"]
    new.noise = recurrent_noise(
        new.kind, noise, gate_noise, names, new.hidden_size, eval_noise, weight.device, weight.dtype
    )
    _adopt_parameters(old, new)
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
            target.__dict__[key] = value  # the same dictionaries, so that handles already given out still remove


def _place(home: nn.Module, model: nn.Module) -> tuple[torch.device | None, torch.dtype | None]:
    """Device and dtype for p: those of the nearest floating parameters."""
    for module in (home, model):
        for parameter in module.parameters():
            if parameter.is_floating_point():
                return parameter.device, parameter.dtype
    return None, None


def _copy_sharing_tensors(model: nn.Module) -> nn.Module:
    tensors = [*model.parameters(), *model.buffers()]
    # Computed ones too, such as the weight under spectral_norm: deepcopy refuses those.
    tensors += [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})

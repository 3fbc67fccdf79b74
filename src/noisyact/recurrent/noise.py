"""The submodule `noise` of recurrent layers and cells: the schemes, the learned p and the noise scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from noisyact import equations
from noisyact.activations import NoisyModule, check_rule, in_force
from noisyact.estimators import ROUNDED
from noisyact.noise import draw_seeds
from noisyact.ops.recurrent.types import NONLINEARITIES, CellNoise
from noisyact.pairs import RELU
from noisyact.schemes import Scheme, scheme

__all__ = [
    "EvaluationRule", "RecurrentNoise", "check_schemes", "current", "fresh_seeds", "noise_in_force",
    "noise_of", "recurrent_noise", "reset_recurrent",
]  # fmt: skip


class RecurrentNoise(NoisyModule):
    """Holds p of every layer and direction, [nonlinearities * H] each, and the noise scale.

    Only these entries of a state_dict are missing in torch's layers. If a checkpoint has none of them, it comes from
    torch's layer and loads without an error.

    Args:
        kind: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        state: the scheme of the tanh nonlinearities; None for no noise.
        gate: the scheme of the sigmoids; None for no noise.
        names: the names of the p parameters, one for each layer and direction.
        hidden: the number of units.
        eval_noise: "expectation", "hard", "sample" or "binary", as in ``NoisyActivation``.
    """

    def __init__(
        self, kind: str, state: Scheme | None, gate: Scheme | None, names: Iterable[str], hidden: int, eval_noise: str,
        device: Any, dtype: Any,
    ) -> None:  # fmt: skip
        main = state or gate
        assert main is not None
        _check_gates(kind, eval_noise)
        super().__init__(main, eval_noise, device, dtype)
        self.state, self.gate = state, gate
        if gate is not None and gate != main:
            self._register_scale("gate_scale", gate.scale, device, dtype)
        learns = any(s is not None and s.learns_p for s in (state, gate))
        self.names = tuple(names) if learns else ()
        for name in self.names:
            self.register_parameter(
                name, nn.Parameter(torch.empty(NONLINEARITIES[kind] * hidden, device=device, dtype=dtype))
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw p from U(-1, 1), as in the paper, and reset the scales to the schemes'."""
        for p in self.parameters():
            nn.init.uniform_(p, -1.0, 1.0)
        self._write_scale("scale", self.noise.scale)
        if "gate_scale" in self._buffers and self.gate is not None:
            self._write_scale("gate_scale", self.gate.scale)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "names" not in state:  # pickled by an earlier version
            self.names = tuple(self._parameters)

    def _scheme_of(self, name: str) -> Scheme:
        return self.gate if name == "gate_scale" and self.gate is not None else self.noise

    def all_p(self, count: int) -> list[Tensor | None]:
        """The current p of each layer and direction; None for schemes without a learned p."""
        return [current(self, name) for name in self.names] or [None] * count

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        if any(key.startswith(prefix) for key in state_dict):
            super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        """The schemes with their current scales."""
        state = None if self.state is None else in_force(self.state, self.scale)
        gate = None if self.gate is None else in_force(self.gate, getattr(self, "gate_scale", self.scale))
        return repr(state) if state == gate else f"{state!r}, gate={gate!r}"


class EvaluationRule:
    """The evaluation rule of a layer or cell: that of its submodule `noise`, or its own if it has no noise.

    Without noise only "binary" has an effect: it rounds the gates, soft or hard, in evaluation mode.
    """

    kind: str
    training: bool
    noise: RecurrentNoise | None
    _eval_noise: str = "expectation"

    @property
    def eval_noise(self) -> str:
        """The evaluation rule: "expectation", "hard", "sample" or "binary"."""
        return self._eval_noise if self.noise is None else self.noise.eval_noise

    @eval_noise.setter
    def eval_noise(self, rule: str) -> None:
        _check_gates(self.kind, check_rule(rule))
        if self.noise is None:
            self._eval_noise = rule
        else:
            self.noise.eval_noise = rule

    @property
    def rounds(self) -> bool:
        """Whether a call rounds the gates now."""
        return not self.training and self.eval_noise == "binary"


def _check_gates(kind: str, eval_noise: str) -> None:
    if eval_noise == "binary" and kind.startswith("rnn"):
        raise ValueError("eval_noise='binary' rounds the gates, and an RNN has none")


def current(module: nn.Module, name: str) -> Tensor:
    """The tensor that a module currently has under a name: a parameter, a parametrization's result, or any tensor."""
    own = module._parameters.get(name)  # faster than getattr, which searches here last
    return own if own is not None and name not in module.__dict__ else getattr(module, name)


def recurrent_noise(
    kind: str, noise: Scheme | str | None, gate_noise: Scheme | str | None, names: Iterable[str], hidden: int,
    eval_noise: str, device: Any, dtype: Any,
) -> RecurrentNoise | None:  # fmt: skip
    """Build the submodule from a layer's arguments; None if the layer has no noise."""
    state = None if noise is None else scheme(noise)
    gate = state if gate_noise is None else scheme(gate_noise)
    if kind.startswith("rnn"):
        gate = state  # an RNN has no gates
    if state is None and gate is None:
        return None
    check_schemes(kind, state, gate, hard=True)
    return RecurrentNoise(kind, state, gate, names, hidden, eval_noise, device, dtype)


def noise_of(module: Any) -> RecurrentNoise | None:
    """The submodule `noise` of a layer or cell."""
    own = module._modules.get("noise")  # faster than getattr, which searches here last
    return module.noise if own is None else own


def noise_in_force(module: Any, noise: RecurrentNoise | None, like: Tensor) -> tuple[CellNoise, bool]:
    """The schemes of a call of a layer or cell, and whether the call draws noise. Rounded gates have a scheme too."""
    hard, training = module.hard, module.training
    rule = module._eval_noise if noise is None else noise.eval_noise
    if noise is None:
        none = torch.zeros((), device=like.device)
        found, drawn = CellNoise(None, None, none, none, hard), False
    else:
        if not hard or module.kind == "rnn_relu":
            check_schemes(module.kind, noise.state, noise.gate, hard)
        noisy = noise.is_noisy(training)
        off = not noisy and rule == "hard"
        state, gate = (None, None) if off else (noise.state, noise.gate)
        scale, gate_scale = noise._buffers.get("scale"), noise._buffers.get("gate_scale")
        scale = noise.scale if scale is None else scale
        drawn = noisy and ((state is not None and state.draws) or (gate is not None and gate.draws))
        found = CellNoise(state, gate, scale, scale if gate_scale is None else gate_scale, hard)
    if rule == "binary" and not training:
        everywhere = torch.full((), ROUNDED.scale, dtype=found.gate_scale.dtype, device=like.device)
        found = found._replace(gate=ROUNDED, gate_scale=everywhere)
    return found, drawn


def check_schemes(kind: str, state: Scheme | None, gate: Scheme | None, hard: bool) -> None:
    """Raise an error for a scheme that the nonlinearities do not allow.

    The mean of noise at the input of soft functions has no closed form, and ReLU has no upper limit.
    """
    if not hard:
        for own in (state, gate):
            if own is not None and own.smooths:
                raise ValueError(f"{own!r}: the mean of noise at the input needs hard functions, but hard=False")
    if kind == "rnn_relu" and state is not None and state.needs_limits:
        equations.limits_of(RELU, state)


def fresh_seeds(drawn: bool, like: Tensor, count: int) -> Sequence[Tensor | None]:
    """One seed for each layer and direction; None for each if no noise is drawn."""
    return draw_seeds(like.device, count) if drawn else [None] * count


def reset_recurrent(module: nn.Module, hidden: int) -> None:
    """Initialise a layer or cell: the weights as torch does, the noise as the paper does."""
    bound = 1.0 / math.sqrt(hidden) if hidden > 0 else 0.0  # torch allows cells without units
    for name, parameter in module.named_parameters():
        if not name.startswith("noise."):
            nn.init.uniform_(parameter, -bound, bound)
    noise = module._modules.get("noise")  # not set yet while torch's constructor runs
    if isinstance(noise, RecurrentNoise):
        noise.reset_parameters()

"""The evaluation rule of a whole model."""

from __future__ import annotations

from torch import nn

from noisyact.activations import NoisyActivation, check_model, check_rule
from noisyact.pairs import HardPair, Pair
from noisyact.recurrent.cells import NoisyCell
from noisyact.recurrent.layers import NoisyRecurrent

__all__ = ["set_eval_noise"]


def set_eval_noise(model: nn.Module, rule: str) -> int:
    """Set the evaluation rule of a model: ``eval_noise`` of its noisy activations, recurrent layers and cells.

    The rule ``"binary"`` is set only on gates: on activations with the range [0, 1], and on LSTM and GRU layers
    and cells, with or without noise, hard or soft. They then compute exactly 0 or 1 in evaluation mode, 1 where
    h(x) >= 1/2. Training does not change, and the derivative in evaluation mode is that of u (straight-through). To
    round other functions, set the attribute ``eval_noise`` of their modules.

    This is an evaluation rule and not a conversion, because one model is usually evaluated both ways: the difference
    tells what rounding costs. ``set_eval_noise(model, "expectation")`` takes it back.

    Args:
        model: any module. Torch's own modules do not change; see :func:`noisyact.noisify` and, for soft recurrent
            layers, :func:`noisyact.accelerate`.
        rule: "expectation", "hard", "sample" or "binary".

    Returns: the number of modules whose rule was set.

    >>> import torch
    >>> from noisyact import NoisyHardSigmoid
    >>> model = nn.Sequential(NoisyHardSigmoid("gumbel")).eval()
    >>> set_eval_noise(model, "binary")
    1
    >>> model(torch.tensor([-0.1, 0.0, 3.0]))
    tensor([0., 1., 1.])
    """
    check_model(model)
    check_rule(rule)
    parts = [part for part in model.modules() if isinstance(part, (NoisyActivation, NoisyRecurrent, NoisyCell))]
    if rule == "binary":
        parts = [part for part in parts if _is_gate(part)]
    if not parts:
        kind = "gate to round" if rule == "binary" else "noisy part whose rule could be set"
        raise ValueError(f"{type(model).__name__} has no {kind}; see noisyact.noisify and noisyact.accelerate")
    for part in parts:
        part.eval_noise = rule
    return len(parts)


def _is_gate(part: NoisyActivation | NoisyRecurrent | NoisyCell) -> bool:
    if isinstance(part, (NoisyRecurrent, NoisyCell)):
        return part.kind in ("lstm", "gru")
    pair: HardPair | Pair = part.pair
    return ((pair.low, pair.high) if isinstance(pair, HardPair) else pair.limits) == (0.0, 1.0)

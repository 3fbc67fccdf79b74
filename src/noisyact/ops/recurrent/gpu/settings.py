"""The functions of a cell as compile-time constants of the kernels."""

from __future__ import annotations

from typing import Any

from noisyact.ops.triton import constants_of
from noisyact.schemes import Scheme

__all__ = ["functions"]

_KINDS = {"lstm": 0, "gru": 1, "rnn_tanh": 2, "rnn_relu": 3}  # as in cells.py


def functions(kind: str, state: Scheme | None, gate: Scheme | None, hard: bool, draw: bool) -> dict[str, Any]:
    """The kind of cell, and the scheme, leak and clipping of its sigmoids (gate) and of its tanh (state)."""
    (gate_code, gate_leak, gate_clip), (state_code, state_leak, state_clip) = (
        constants_of(s, draw) for s in (gate, state)
    )
    return {
        "KIND": _KINDS[kind], "IS_HARD": hard, "DRAW": draw,
        "GATE": gate_code, "GATE_LEAK": gate_leak, "GATE_CLIP": gate_clip,
        "STATE": state_code, "STATE_LEAK": state_leak, "STATE_CLIP": state_clip,
    }  # fmt: skip

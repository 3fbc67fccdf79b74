"""The functions of a cell as compile-time constants of the kernels."""

from __future__ import annotations

from typing import Any

from noisyact.ops.triton import code_of
from noisyact.schemes import Scheme

__all__ = ["functions"]

_KINDS = {"lstm": 0, "gru": 1, "rnn_tanh": 2, "rnn_relu": 3}  # as in cells.py
_NO_NOISE = (-1, 0.0, False)


def functions(kind: str, state: Scheme | None, gate: Scheme | None, hard: bool, draw: bool) -> dict[str, Any]:
    """The kind of cell, and the scheme, leak and clipping of its sigmoids (gate) and of its tanh (state)."""
    (gate_code, gate_leak, gate_clip), (state_code, state_leak, state_clip) = (
        _NO_NOISE if s is None else (code_of(s), s.leak, s.clips) for s in (gate, state)
    )
    return {
        "KIND": _KINDS[kind], "IS_HARD": hard, "DRAW": draw,
        "GATE": gate_code, "GATE_LEAK": gate_leak, "GATE_CLIP": gate_clip,
        "STATE": state_code, "STATE_LEAK": state_leak, "STATE_CLIP": state_clip,
    }  # fmt: skip

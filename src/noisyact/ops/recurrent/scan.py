"""The recurrent layer as one `scan` operator of torch, for torch.export: the time loop is part of the graph.

The graph consists of torch's operators and is valid for any number of steps and any batch size.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from noisyact.compiling import constant
from noisyact.ops.recurrent import reference
from noisyact.ops.recurrent.types import NONLINEARITIES, CellNoise, LayerWeights

__all__ = ["available", "layer"]


@constant
def available() -> bool:
    """Whether this torch has the operator. Its Python function is private and may move."""
    try:
        from torch._higher_order_ops.scan import scan
    except ImportError:
        return False
    return callable(scan)


def layer(
    kind: str, x: Tensor, h: Tensor, c: Tensor | None, weights: LayerWeights, noise: CellNoise, reverse: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """One layer in one direction without drawn noise, equal to :func:`reference.layer` with xi = None.

    Args:
        x: [steps, batch, input]; all sequences have the same length.

    Returns: h at every step, [steps, batch, H or projection]; the final h; the final c.
    """
    from torch._higher_order_ops.scan import scan

    p = None if weights.p is None else weights.p.reshape(NONLINEARITIES[kind], -1)

    def advance(state: tuple[Tensor, ...], from_input: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        own_c = state[1] if kind == "lstm" else None
        new_h, new_c = reference.step(kind, from_input, state[0], own_c, weights, p, None, noise)
        # torch does not allow two results of a step to share memory.
        return (new_h,) if new_c is None else (new_h, new_c), new_h.clone()

    # A slice of a state of several layers would make the batch size a constant of the graph.
    first = (h.clone(),) if c is None else (h.clone(), c.clone())
    last, y = scan(advance, first, F.linear(x, weights.w_ih, weights.b_ih), reverse=reverse)
    return y, last[0], last[1] if kind == "lstm" else None

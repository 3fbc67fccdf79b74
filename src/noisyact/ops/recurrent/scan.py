"""The recurrent layer as one `scan` operator of torch, for torch.export: the time loop is part of the graph.

The graph consists of torch's operators and is valid for any number of steps and any batch size.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from noisyact.compiling import constant
from noisyact.ops.recurrent import reference
from noisyact.ops.recurrent.types import NONLINEARITIES, PLAIN_STATE, CellNoise, LayerWeights, StateRules

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
    kind: str, x: Tensor, h: Tensor, c: Tensor | None, weights: LayerWeights, noise: CellNoise, reverse: bool,
    rules: StateRules = PLAIN_STATE,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """One layer in one direction without drawn noise and masks, equal to :func:`reference.layer` with xi = None.

    Args:
        x: [steps, batch, input]; all sequences have the same length.
        rules: resets and the rates of zoneout.

    Returns: h at every step, [steps, batch, H or projection]; the final h; the final c.
    """
    from torch._higher_order_ops.scan import scan

    p = None if weights.p is None else weights.p.reshape(NONLINEARITIES[kind], -1)

    def advance(state: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        own_h, own_c = state[0], state[1] if kind == "lstm" else None
        if rules.reset is not None:
            own_h, own_c = reference.reset_state(own_h, own_c, given[1], rules)
        new_h, new_c = reference.step(kind, given[0], own_h, own_c, weights, p, None, noise, rules)
        # torch does not allow two results of a step to share memory.
        return (new_h,) if new_c is None else (new_h, new_c), new_h.clone()

    # A slice of a state of several layers would make the batch size a constant of the graph.
    first = (h.clone(),) if c is None else (h.clone(), c.clone())
    reset_h, reset_c = (None if to is None else to.clone() for to in (rules.reset_h, rules.reset_c))
    rules = rules._replace(reset_h=reset_h, reset_c=reset_c)
    from_input = F.linear(x, weights.w_ih, weights.b_ih)
    given = (from_input,) if rules.reset is None else (from_input, rules.reset)
    last, y = scan(advance, first, given, reverse=reverse)
    return y, last[0], last[1] if kind == "lstm" else None

"""The arguments of layers and cells that rule their state: resets, replayed noise, zoneout and recurrent dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from noisyact.noise import layer_seeds, recurrent_mask, recurrent_positions
from noisyact.ops.recurrent.checks import LAST_STEP, MisfitError, check_rate
from noisyact.ops.recurrent.types import PLAIN_STATE, StateRules
from noisyact.recurrent.noise import fresh_seeds

__all__ = [
    "StateArguments", "as_seed", "check_position", "check_rates", "check_reset", "described_rates", "in_reverse",
    "reset_states", "seeded_dropout", "state_arguments", "with_batch", "zoneout_pair",
]  # fmt: skip


class StateArguments(NamedTuple):
    """What rules the state during one call of stacked layers, checked and in the layout of the kernels.

    Args:
        reset: [steps, batch], bool; True where a sequence begins anew.
        reset_h: [layers * directions, batch, H or projection], the h of new sequences; None for zeros.
        reset_c: [layers * directions, batch, H], the same for the LSTM's c.
        seed: one int64 from which all noise and all masks of the call follow; None to draw seeds.
        first_step, rows: the position of the noise, as in :class:`StateRules`.
        zoneout: the rates of h and c.
        recurrent_dropout: the rate.
    """

    reset: Tensor | None = None
    reset_h: Tensor | None = None
    reset_c: Tensor | None = None
    seed: Tensor | None = None
    first_step: int = 0
    rows: Tensor | None = None
    zoneout: tuple[float, float] = (0.0, 0.0)
    recurrent_dropout: float = 0.0

    def has_masks(self) -> bool:  # not a property: torch 2.9 cannot compile one of a tuple
        """Whether a call in training mode draws masks."""
        return self.zoneout != (0.0, 0.0) or self.recurrent_dropout > 0

    def need_noisyact(self, training: bool, dropout: float) -> bool:
        """Whether a call has anything that torch's own layer does not have."""
        if self.reset is not None or self.zoneout != (0.0, 0.0):
            return True
        return training and (self.recurrent_dropout > 0 or (self.seed is not None and dropout > 0))

    def seeds_and_rules(
        self, x: Tensor, count: int, directions: int, drawn: bool, training: bool
    ) -> tuple[Sequence[Tensor | None], list[StateRules] | None, Sequence[Tensor] | None]:
        """The seeds of the noise, the rules and the given seeds, one for each layer and direction.

        Args:
            x: the input, for its device.
            count: the number of layers times directions.
            directions: 1 or 2; in the latter case every second one is reversed.
            drawn: whether noise is drawn.
            training: whether masks are drawn.

        Returns: the seeds of the noise; the rules, None if they do nothing; the seeds that follow from the caller's,
            None if the caller gave none.
        """
        masked = training and self.has_masks()
        replayed = None if self.seed is None else layer_seeds(self.seed, count)
        seeds = fresh_seeds(drawn or masked, x, count) if replayed is None else replayed
        nothing = [None] * count
        mask_seeds = seeds if masked else nothing
        resets = self.reset, None if self.reset is None or directions == 1 else in_reverse(self.reset)
        rules = [
            self._rules(
                resets[index % directions], None if self.reset_h is None else self.reset_h[index],
                None if self.reset_c is None else self.reset_c[index], mask_seeds[index], drawn,
            )
            for index in range(count)
        ]  # fmt: skip
        return seeds if drawn else nothing, rules if rules[0].in_use() else None, replayed

    def rules_of_one(self, reverse: bool, mask_seed: Tensor | None, drawn: bool) -> StateRules:
        """The rules of a single layer in one direction. Its reset_h and reset_c are [batch, units]."""
        reset = in_reverse(self.reset) if reverse and self.reset is not None else self.reset
        return self._rules(reset, self.reset_h, self.reset_c, mask_seed, drawn)

    def _rules(
        self, reset: Tensor | None, reset_h: Tensor | None, reset_c: Tensor | None, mask_seed: Tensor | None,
        drawn: bool,
    ) -> StateRules:  # fmt: skip
        positioned = drawn or mask_seed is not None  # without noise and masks no position matters
        rules = StateRules(
            reset, reset_h, reset_c, self.rows if positioned else None, mask_seed, *self.zoneout,
            self.recurrent_dropout, self.first_step if positioned else 0,
        )  # fmt: skip
        return rules if rules.in_use() else PLAIN_STATE


def in_reverse(reset: Tensor) -> Tensor:
    """The mask of a layer that walks from the last step to the first: it enters an earlier sequence one step later.

    >>> in_reverse(torch.tensor([[True], [False], [True], [False]])).tolist()
    [[False], [True], [False], [False]]
    """
    shifted = reset.roll(-1, 0)  # a slice of one step less would limit the number of steps of an exported graph
    shifted[-1] = False
    return shifted


def check_rates(kind: str, zoneout: Any, recurrent_dropout: float) -> tuple[float | tuple[float, float], float]:
    """Return the rates of a layer or cell as it keeps them, or raise an error unless they are in [0, 1)."""
    if isinstance(zoneout, (tuple, list)):
        if kind != "lstm" or len(zoneout) != 2:
            raise ValueError(f"zoneout={zoneout!r}: a number, or for an LSTM a pair (zoneout of h, zoneout of c)")
        pair = check_rate("zoneout of h", zoneout[0]), check_rate("zoneout of c", zoneout[1])
        zoneout = pair if any(pair) else 0.0
    else:
        zoneout = check_rate("zoneout", zoneout)
    return zoneout, check_rate("recurrent_dropout", recurrent_dropout)


def zoneout_pair(kind: str, zoneout: Any) -> tuple[float, float]:
    """The rates of h and of c."""
    if isinstance(zoneout, tuple):
        return zoneout
    return zoneout, zoneout if kind == "lstm" else 0.0


def described_rates(module: Any) -> list[str]:
    """The rates of a layer or cell that are not 0, for its repr."""
    rates = {name: getattr(module, name) for name in ("zoneout", "recurrent_dropout")}
    return [f"{name}={rate}" for name, rate in rates.items() if rate]


def as_seed(seed: Any, device: torch.device) -> Tensor | None:
    """A seed as a tensor on the device, or raise an error that says what is allowed."""
    if seed is None or isinstance(seed, Tensor):
        if seed is not None and (seed.numel() != 1 or seed.dtype is not torch.int64 or seed.device != device):
            raise MisfitError(
                f"seed must be an int or one int64 on {device}, like the input, not of shape {tuple(seed.shape)} and "
                f"{seed.dtype} on {seed.device}"
            )
        return seed
    if not isinstance(seed, (int, torch.SymInt)) or isinstance(seed, bool):
        raise TypeError(f"seed must be an int or a tensor, such as torch.tensor(7), not {seed!r}")
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed={seed}: 64-bit integers are allowed")
    number: Any = seed  # torch's stubs do not know that it may be symbolic
    return torch.full((), number, dtype=torch.int64, device=device)


def check_reset(reset: Any, shape: tuple[int, ...], device: torch.device) -> None:
    """Raise an error unless the mask is bool, of the shape and on the device."""
    if not isinstance(reset, Tensor):
        raise TypeError(f"reset must be a bool tensor, not {type(reset).__name__}")
    if reset.dtype is not torch.bool:
        raise TypeError(f"reset must be of dtype torch.bool, not {reset.dtype}: use reset.bool() or reset != 0")
    if reset.shape != shape or reset.device != device:
        raise MisfitError(
            f"reset must be of shape {tuple(shape)} on {device}, like the input, not of shape {tuple(reset.shape)} on "
            f"{reset.device}"
        )


def check_position(
    first_step: Any, steps: int, rows: Any, batch: int, seed: Any, device: torch.device, name: str = "first_step"
) -> None:
    """Raise an error unless the position of the noise fits the input, and there is a seed if it is not the default.

    Args:
        name: what the caller's argument is called.
    """
    if not isinstance(first_step, (int, torch.SymInt)) or isinstance(first_step, bool):
        raise TypeError(f"{name} must be an int, not {first_step!r}")
    if first_step < 0 or first_step + steps > LAST_STEP:
        raise ValueError(f"{name}={first_step}: the {steps} steps must be in [0, {LAST_STEP}]")
    if seed is None and (rows is not None or first_step != 0):
        raise ValueError(f"{name} and rows say which part of a seed's noise a call has: they need seed")
    if rows is None:
        return
    if not isinstance(rows, Tensor) or rows.dtype is not torch.int64:
        raise TypeError(f"rows must be an int64 tensor, not {getattr(rows, 'dtype', type(rows).__name__)}")
    if rows.shape != (batch,) or rows.device != device:
        raise MisfitError(
            f"rows must be of shape {(batch,)} on {device}, like the input's batch, not of shape {tuple(rows.shape)} "
            f"on {rows.device}"
        )


def reset_states(
    kind: str, reset_to: Any, reset: Any, batch: int, leading: tuple[int, ...] = ()
) -> tuple[Tensor | None, Tensor | None]:
    """The h and c of new sequences, each [*leading, batch, units], from an argument with `batch` or 1 rows."""
    if reset_to is None:
        return None, None
    if reset is None:
        raise ValueError("reset_to is the state that a sequence has after a reset: it needs reset")
    states: list[Any] = list(reset_to) if kind == "lstm" and isinstance(reset_to, (tuple, list)) else [reset_to]
    if len(states) != (2 if kind == "lstm" else 1) or not all(isinstance(state, Tensor) for state in states):
        raise TypeError(f"reset_to must be {'the tensors (h, c)' if kind == 'lstm' else 'a tensor'}, like hx")
    for state in states:
        if state.dim() != len(leading) + 2 or state.shape[:-2] != leading or state.shape[-2] not in (1, batch):
            raise MisfitError(
                f"reset_to must be of shape {(*leading, batch, 'units')} or {(*leading, 1, 'units')}, not "
                f"{tuple(state.shape)}"
            )
    states = [state.expand(*leading, batch, state.shape[-1]) for state in states]
    return states[0], states[1] if kind == "lstm" else None


def with_batch(state: Any) -> Any:
    """A state of an input without a batch, h or (h, c), with a batch of one row."""
    if isinstance(state, (tuple, list)):
        return tuple(map(with_batch, state))
    return state.unsqueeze(-2) if isinstance(state, Tensor) and state.dim() > 0 else state


def state_arguments(
    layer: Any, x: Tensor, sizes: Sequence[int] | None, packed: PackedSequence | None, unbatched: bool, reset: Any,
    reset_to: Any, seed: Any, first_step: Any, rows: Any,
) -> StateArguments:  # fmt: skip
    """The arguments of a call of a layer, checked and in the layout of the kernels.

    Args:
        layer: the layer, with its rates.
        x, sizes: the input as :func:`noisyact.recurrent.arguments.input_rows` returns it.
        packed: the input if it is packed; its rows are sorted.
        unbatched: whether the input has no batch dimension.
        reset, reset_to, seed, first_step, rows: what the caller gave.
    """
    steps, batch = (x.shape[0], x.shape[1]) if sizes is None else (len(sizes), sizes[0])
    if seed is not None or rows is not None or type(first_step) is not int or first_step != 0:
        seed = as_seed(seed, x.device)
        if unbatched and isinstance(rows, Tensor):
            rows = rows.reshape(-1)
        check_position(first_step, steps, rows, batch, seed, x.device)
        order = None if packed is None else packed.sorted_indices
        if order is not None and seed is not None:  # the noise of a row is that of its place in the caller's batch
            rows = order if rows is None else rows.index_select(0, order)
    if reset is not None:
        if packed is not None:
            raise ValueError(f"{type(layer).__name__}: reset needs padded input, not a PackedSequence")
        shape = (steps,) if unbatched else (batch, steps) if layer.batch_first else (steps, batch)
        check_reset(reset, shape, x.device)
        reset = reset.unsqueeze(1) if unbatched else reset.t() if layer.batch_first else reset
    reset_h = reset_c = None
    if reset_to is not None:
        reset_to = with_batch(reset_to) if unbatched else reset_to
        reset_h, reset_c = reset_states(layer.kind, reset_to, reset, batch, (len(layer._all_weights),))
    rates = zoneout_pair(layer.kind, layer.zoneout), layer.recurrent_dropout
    return StateArguments(reset, reset_h, reset_c, seed, first_step, rows, *rates)


def seeded_dropout(
    x: Tensor, rate: float, seed: Tensor, sizes: Sequence[int] | None, first_step: int, rows: Tensor | None
) -> Tensor:
    """Dropout of a layer's output as a function of a seed: word 0 of the counters (unit, row, step, 4).

    Args:
        x: [steps, batch, units], or packed [rows, units].
        rate: the probability that a unit becomes zero; the others are scaled by 1 / (1 - rate).
        seed: that of the layer, one int64.
        sizes: the number of rows at each step of packed x.
        first_step, rows: the position, as in :class:`StateRules`.
    """
    if rate == 1:
        return torch.zeros_like(x)
    if sizes is None:  # without a list of sizes, which would be a constant of a graph
        shape = x.shape[:-1]
        steps = torch.arange(shape[0], device=x.device)[:, None] + first_step
        rows = torch.arange(shape[1], device=x.device) if rows is None else rows
        steps, rows = steps.expand(shape).reshape(-1), rows.expand(shape).reshape(-1)
    else:
        steps, rows = recurrent_positions(sizes, x.device, first_step, rows)
    dropped = recurrent_mask(seed, steps, rows, x.shape[-1], rate, block=4)
    return x * ((~dropped).to(x.dtype) / (1.0 - rate)).reshape(x.shape)

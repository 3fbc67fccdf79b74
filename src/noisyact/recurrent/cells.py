"""Noisy LSTM, GRU and RNN cells. One kernel computes the pointwise part of a step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisyact.compiling import as_leaf, symbolic
from noisyact.ops.dispatch import tracing
from noisyact.ops.recurrent import reference
from noisyact.ops.recurrent.checks import MisfitError, check_rules
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, PLAIN_STATE, StateRules
from noisyact.recurrent import backends
from noisyact.recurrent.arguments import described
from noisyact.recurrent.calls import CellCall, LSTMCellCall
from noisyact.recurrent.execution import run_cell
from noisyact.recurrent.noise import (
    EvaluationRule,
    fresh_seeds,
    noise_in_force,
    noise_of,
    recurrent_noise,
    reset_recurrent,
)
from noisyact.recurrent.state import (
    as_seed,
    check_position,
    check_rates,
    check_reset,
    described_rates,
    reset_states,
    with_batch,
    zoneout_pair,
)
from noisyact.schemes import NAH, Scheme

__all__ = ["NoisyCell", "NoisyGRUCell", "NoisyLSTMCell", "NoisyRNNCell"]


class NoisyCell(EvaluationRule, nn.RNNCellBase):
    """Base class of NoisyLSTMCell, NoisyGRUCell and NoisyRNNCell.

    Besides the state and xi, a call takes keyword arguments, as a layer's does:

    - ``reset``, bool [batch]: rows whose state is replaced by zeros before the step, or by ``reset_to``, a state like
      ``hx`` with `batch` rows or one;
    - ``seed``, an int or one int64: the noise and the masks are those of this seed for ``step`` (0 by default) and
      ``rows`` (int64 [batch], 0, 1, 2, ... by default). Steps 0, 1, 2, ... with one seed have the noise of a layer with
      this seed. The mask of the recurrent dropout is the same at all steps of one seed; without a seed each step has a
      new one.
    """

    zoneout: Any = 0.0  # for modules that were pickled before they had these rates
    recurrent_dropout: float = 0.0

    def __init__(
        self, kind: str, input_size: int, hidden_size: int, bias: bool, device: Any, dtype: Any,
        noise: Scheme | str | None, gate_noise: Scheme | str | None, hard: bool, eval_noise: str, backend: str,
        zoneout: float | tuple[float, float], recurrent_dropout: float,
    ) -> None:  # fmt: skip
        self.backend = backends.check(backend)
        rates = check_rates(kind, zoneout, recurrent_dropout)
        super().__init__(input_size, hidden_size, bias, GATES[kind], device, dtype)
        self.kind = kind
        self.hard = hard
        self.zoneout, self.recurrent_dropout = rates
        self.noise = recurrent_noise(kind, noise, gate_noise, ["p"], hidden_size, eval_noise, device, dtype)
        self.eval_noise = eval_noise

    def reset_parameters(self) -> None:
        """Initialise the weights as torch does, and the noise as the paper does."""
        reset_recurrent(self, self.hidden_size)

    def _step(
        self, x: Tensor, h: Tensor | None, c: Tensor | None, xi: Tensor | None, reset: Tensor | None, reset_to: Any,
        seed: int | Tensor | None, step: int, rows: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        name = type(self).__name__
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(
                f"{name}: input must be a floating-point tensor, not {getattr(x, 'dtype', type(x).__name__)}"
            )
        if x.dim() not in (1, 2) or x.shape[-1] != self.input_size:
            raise MisfitError(
                f"{name}: input must end in {self.input_size} and be 1-D or 2-D, not {tuple(x.shape)}: input has "
                f"inconsistent input_size: got {x.shape[-1] if x.dim() else 0} expected {self.input_size}"
            )
        shape = (*x.shape[:-1], self.hidden_size)
        for place, (given, what) in enumerate(((h, "h"), (c, "c"))):
            if given is not None and not isinstance(given, Tensor):
                raise TypeError(f"{name}: {what} must be a tensor, not {type(given).__name__}")
            if given is not None and given.shape != shape:
                raise _misfit(name, what, f"hidden{place}", tuple(given.shape), shape)
        count = NONLINEARITIES[self.kind]
        if xi is not None and not isinstance(xi, Tensor):
            raise TypeError(f"{name}: xi must be a tensor, not {type(xi).__name__}")
        if xi is not None and xi.shape != (*x.shape[:-1], count, self.hidden_size):
            raise ValueError(
                f"{name}: xi must be of shape {(*x.shape[:-1], count, self.hidden_size)}, not {tuple(xi.shape)}"
            )
        inputs = x if x.dim() == 2 else x.unsqueeze(0)
        if tracing():  # makes the trace raise for another batch size, for which its result would be wrong
            inputs = torch.stack(inputs.unbind(0))
        batch = inputs.shape[0]  # len(inputs) would be a constant of an exported graph
        h = inputs.new_zeros(batch, self.hidden_size) if h is None else h.reshape(batch, self.hidden_size)
        if self.kind == "lstm":
            c = inputs.new_zeros(h.shape) if c is None else c.reshape(h.shape)
        own = noise_of(self)
        noise, drawn = noise_in_force(self, own, inputs)
        if not drawn:
            xi = None
        w_ih, w_hh, b_ih, b_hh = self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
        # F.linear accepts a weight on the meta device without an error and returns uninitialised memory.
        for given, what in ((w_ih, "weight_ih"), (w_hh, "weight_hh"), (b_ih, "bias_ih"), (b_hh, "bias_hh"), (h, "h")):
            if given is not None and given.device != inputs.device:
                raise MisfitError(f"{name}: {what} is on {given.device} and the input on {inputs.device}")
        rules, masks = PLAIN_STATE, None
        if seed is not None or rows is not None or step != 0:
            seed = as_seed(seed, inputs.device)
            rows = rows.reshape(-1) if isinstance(rows, Tensor) else rows
            check_position(step, 1, rows, batch, seed, inputs.device, "step")
        if reset is not None or reset_to is not None:
            h, c = self._reset(h, c, reset, reset_to)
        masked = self.training and bool(self.zoneout or self.recurrent_dropout)
        if seed is None and ((drawn and xi is None) or masked):
            seed = fresh_seeds(True, inputs, 1)[0]
        if self.zoneout or self.recurrent_dropout:
            rules = StateRules(
                None, None, None, rows, seed if masked else None, *zoneout_pair(self.kind, self.zoneout),
                self.recurrent_dropout, step,
            )  # fmt: skip
            masks = reference.draw_masks(self.kind, rules, [batch], self.hidden_size, self.hidden_size, h)
        # Convert back to the input's dtype: under autocast the products are in half precision, which c must not be.
        a = F.linear(inputs, w_ih, b_ih).to(inputs.dtype)
        seen = h if masks is None or masks.dropout is None else h * masks.dropout
        q = F.linear(seen, w_hh, b_hh).to(inputs.dtype)
        separate = self.kind == "gru"
        new_h, new_c = run_cell(
            self.kind, a if separate else a + q, q if separate else None, h, c,
            None if own is None else own.all_p(1)[0], noise,
            seed=seed if drawn and xi is None else None,
            xi=None if xi is None else xi.reshape(batch, count, self.hidden_size), backend=self.backend,
            first_step=step, rows=rows,
        )  # fmt: skip
        if masks is not None:
            new_h = reference.zoneout(new_h, h, rules.zoneout_h, masks.keep_h)
            if c is not None and new_c is not None:
                new_c = reference.zoneout(new_c, c, rules.zoneout_c, masks.keep_c)
        return new_h.reshape(shape), None if new_c is None else new_c.reshape(shape)

    def _reset(self, h: Tensor, c: Tensor | None, reset: Any, reset_to: Any) -> tuple[Tensor, Tensor | None]:
        """The state before the step. A mask without dimensions is that of an input without a batch."""
        if isinstance(reset, Tensor) and reset.dim() == 0:
            reset = reset.reshape(1)
            reset_to = with_batch(reset_to)
        if reset is not None:
            check_reset(reset, (h.shape[0],), h.device)
        reset_h, reset_c = reset_states(self.kind, reset_to, reset, h.shape[0])
        rules = StateRules(reset, reset_h, reset_c)
        check_rules(self.kind, rules._replace(reset=None), h, None, h.shape[0], self.hidden_size, self.hidden_size)
        return reference.reset_state(h, c, reset, rules)  # pyright: ignore[reportArgumentType]

    def extra_repr(self) -> str:
        """The sizes, and the settings that differ from their defaults."""
        parts = [f"{self.input_size}, {self.hidden_size}"]
        parts += [] if self.bias else ["bias=False"]
        parts += [] if self.hard else ["hard=False"]
        parts += [] if self.eval_noise == "expectation" else [f"eval_noise={self.eval_noise!r}"]
        parts += [] if self.backend == "auto" else [f"backend={self.backend!r}"]
        parts += described_rates(self)
        return ", ".join(parts)


def _misfit(module: str, what: str, theirs: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> MisfitError:
    """An error that also contains torch's message, for callers that match it."""
    if len(found) not in (1, 2):
        more = f"Expected {'hx' if module.endswith('LSTMCell') else 'hidden'} to be 1D or 2D, got {len(found)}D instead"
        more = more.replace("hx", f"hx[{theirs[-1]}]")
    elif found[-1] != wanted[-1]:
        more = f"{theirs} has inconsistent hidden_size: got {found[-1]}, expected {wanted[-1]}"
    else:
        more = f"Input batch size {wanted[0]} doesn't match {theirs} batch size {found[0]}"
    return MisfitError(f"{module}: {what} must be of shape {wanted}, not {found}: {more}")


class NoisyLSTMCell(NoisyCell):
    """nn.LSTMCell with hard, noisy nonlinearities. Args: those of nn.LSTMCell, then the keyword arguments of NoisyLSTM.

    >>> import torch
    >>> cell = NoisyLSTMCell(10, 20, noise="nah")
    >>> h, c = cell(torch.randn(3, 10))
    >>> h, c = cell(torch.randn(3, 10), (h, c), xi=torch.randn(3, 5, 20))
    >>> h.shape
    torch.Size([3, 20])
    """

    __call__: LSTMCellCall  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None, *,
        noise: Scheme | str | None = NAH(), gate_noise: Scheme | str | None = None, hard: bool = True,  # noqa: B008
        eval_noise: str = "expectation", backend: str = "auto", zoneout: float | tuple[float, float] = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(
            "lstm", input_size, hidden_size, bias, device, dtype, noise, gate_noise, hard, eval_noise, backend, zoneout,
            recurrent_dropout,
        )  # fmt: skip

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None, xi: Tensor | None = None, *,
        reset: Tensor | None = None, reset_to: Any = None, seed: int | Tensor | None = None, step: int = 0,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return the new h and c. xi, [batch, 5, H] in the order i, f, g, o and tanh of c, replaces the drawn noise."""
        more = (reset is not None or seed is not None) and symbolic(reset, reset_to, seed, step, rows)
        if more or symbolic(input, hx, xi):
            return as_leaf(
                self,
                input,
                hx,
                xi,
                reset=reset,
                reset_to=reset_to,
                seed=seed,
                step=None if isinstance(step, int) and step == 0 else step,
                rows=rows,
            )
        if hx is not None and not (isinstance(hx, (tuple, list, Tensor)) and len(hx) == 2):
            given = f"a tensor of shape {tuple(hx.shape)}" if isinstance(hx, Tensor) else described(hx)
            raise TypeError(f"{type(self).__name__}: hx must be the tensors (h, c), not {given}")
        h, c = (None, None) if hx is None else hx
        new_h, new_c = self._step(input, h, c, xi, reset, reset_to, seed, step, rows)
        return new_h, new_c  # pyright: ignore[reportReturnType]


class NoisyGRUCell(NoisyCell):
    """nn.GRUCell with hard, noisy nonlinearities. Args: those of nn.GRUCell, then the keyword arguments of NoisyLSTM.

    >>> import torch
    >>> NoisyGRUCell(10, 20)(torch.randn(3, 10), torch.zeros(3, 20)).shape
    torch.Size([3, 20])
    """

    __call__: CellCall  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None, *,
        noise: Scheme | str | None = NAH(), gate_noise: Scheme | str | None = None, hard: bool = True,  # noqa: B008
        eval_noise: str = "expectation", backend: str = "auto", zoneout: float = 0.0, recurrent_dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(
            "gru", input_size, hidden_size, bias, device, dtype, noise, gate_noise, hard, eval_noise, backend, zoneout,
            recurrent_dropout,
        )  # fmt: skip

    def forward(
        self, input: Tensor, hx: Tensor | None = None, xi: Tensor | None = None, *, reset: Tensor | None = None,
        reset_to: Tensor | None = None, seed: int | Tensor | None = None, step: int = 0, rows: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the new h. xi, [batch, 3, H] in the order r, z, n, replaces the drawn noise."""
        more = (reset is not None or seed is not None) and symbolic(reset, reset_to, seed, step, rows)
        if more or symbolic(input, hx, xi):
            return as_leaf(
                self,
                input,
                hx,
                xi,
                reset=reset,
                reset_to=reset_to,
                seed=seed,
                step=None if isinstance(step, int) and step == 0 else step,
                rows=rows,
            )
        return self._step(input, hx, None, xi, reset, reset_to, seed, step, rows)[0]


class NoisyRNNCell(NoisyCell):
    """nn.RNNCell with a noisy hard tanh or noisy ReLU. Args: those of nn.RNNCell, then keyword arguments of NoisyLSTM.

    >>> import torch
    >>> NoisyRNNCell(10, 20, nonlinearity="relu")(torch.randn(10)).shape
    torch.Size([20])
    """

    __call__: CellCall  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", device: Any = None,
        dtype: Any = None, *, noise: Scheme | str | None = NAH(), hard: bool = True,  # noqa: B008
        eval_noise: str = "expectation", backend: str = "auto", zoneout: float = 0.0, recurrent_dropout: float = 0.0,
    ) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity: nonlinearity={nonlinearity!r}, allowed are 'tanh', 'relu'")
        kind = f"rnn_{nonlinearity}"
        super().__init__(
            kind, input_size, hidden_size, bias, device, dtype, noise, None, hard, eval_noise, backend, zoneout,
            recurrent_dropout,
        )  # fmt: skip
        self.nonlinearity = nonlinearity

    def forward(
        self, input: Tensor, hx: Tensor | None = None, xi: Tensor | None = None, *, reset: Tensor | None = None,
        reset_to: Tensor | None = None, seed: int | Tensor | None = None, step: int = 0, rows: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the new h. xi, [batch, 1, H], replaces the drawn noise."""
        more = (reset is not None or seed is not None) and symbolic(reset, reset_to, seed, step, rows)
        if more or symbolic(input, hx, xi):
            return as_leaf(
                self,
                input,
                hx,
                xi,
                reset=reset,
                reset_to=reset_to,
                seed=seed,
                step=None if isinstance(step, int) and step == 0 else step,
                rows=rows,
            )
        return self._step(input, hx, None, xi, reset, reset_to, seed, step, rows)[0]

"""Noisy LSTM, GRU and RNN layers with the interface of nn.LSTM, nn.GRU and nn.RNN."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from noisyact.compiling import as_leaf, constant, symbolic
from noisyact.ops.dispatch import exporting, tracing, transformed
from noisyact.ops.recurrent.types import CellNoise, LayerWeights
from noisyact.recurrent import backends
from noisyact.recurrent.arguments import first_state, input_rows, of_these_sizes
from noisyact.recurrent.calls import LayerCall, LSTMCall
from noisyact.recurrent.execution import call_dtype, run_layers
from noisyact.recurrent.noise import (
    EvaluationRule,
    current,
    fresh_seeds,
    noise_in_force,
    noise_of,
    recurrent_noise,
    reset_recurrent,
)
from noisyact.recurrent.state import StateArguments, check_rates, described_rates, seeded_dropout, state_arguments
from noisyact.schemes import NAH, Scheme

__all__ = ["NoisyGRU", "NoisyLSTM", "NoisyRNN", "NoisyRecurrent"]


class NoisyRecurrent(EvaluationRule, nn.RNNBase):
    """Base class of NoisyLSTM, NoisyGRU and NoisyRNN.

    The parameters (names, shapes and order), the arguments and the results are those of nn.RNNBase. The submodule
    `noise` holds every parameter and buffer that nn.RNNBase does not have.
    """

    zoneout: Any = 0.0  # for modules that were pickled before they had these rates
    recurrent_dropout: float = 0.0

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int, bias: bool, batch_first: bool,
        dropout: float, bidirectional: bool, proj_size: int, device: Any, dtype: Any, noise: Scheme | str | None,
        gate_noise: Scheme | str | None, hard: bool, eval_noise: str, backend: str,
        zoneout: float | tuple[float, float], recurrent_dropout: float,
    ) -> None:  # fmt: skip
        self.backend = backends.check(backend)
        rates = check_rates(mode.lower(), zoneout, recurrent_dropout)
        if proj_size and mode != "LSTM":
            raise ValueError(f"proj_size={proj_size}: proj_size argument is only supported for LSTM, not RNN or GRU")
        super().__init__(
            mode, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device,
            dtype,
        )  # fmt: skip
        self.kind = mode.lower()
        self.hard = hard
        self.zoneout, self.recurrent_dropout = rates
        self.noise = recurrent_noise(
            self.kind, noise, gate_noise, self.noise_names(), hidden_size, eval_noise, device, dtype
        )
        self.eval_noise = eval_noise
        self.flatten_parameters()

    def noise_names(self) -> list[str]:
        """The names of p in the submodule `noise`, one for each layer and direction."""
        return [f"p_{suffix}" for suffix in self._suffixes()]

    def _suffixes(self) -> list[str]:
        """The suffix of the parameter names of each layer and direction, such as `l0_reverse`."""
        return [names[0].removeprefix("weight_ih_") for names in self._all_weights]

    def flatten_parameters(self) -> None:
        """Call torch's method if torch's layer may run. The other backends do not use cuDNN's weight layout."""
        # torch's constructor calls this before our attributes are set.
        if self.backend == "auto" and not getattr(self, "hard", True) and self.noise is None:
            super().flatten_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights as torch does, and the noise as the paper does."""
        reset_recurrent(self, self.hidden_size)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input: Tensor | PackedSequence, hx: Any = None, *, reset: Tensor | None = None, reset_to: Any = None,
        seed: int | Tensor | None = None, first_step: int = 0, rows: Tensor | None = None,
    ) -> Any:  # fmt: skip
        """Return the output and the final state. The input may be batched, unbatched or packed, as in nn.LSTM.

        Args:
            input: [steps, batch, input], [batch, steps, input] with `batch_first`, [steps, input], or packed.
            hx: the first state, as in nn.LSTM.
            reset: bool, [steps, batch] ([batch, steps] with `batch_first`, [steps] without a batch). Where it is True,
                a new sequence begins at this step: the state of the row becomes zero before it, and no gradient passes.
                The result and the gradients are those of each sequence alone. At step 0 it replaces `hx`. A reversed
                direction resets at the same boundaries. Not for packed input.
            reset_to: the state after a reset instead of zeros, like `hx`, with one row or one for each of the batch. It
                gets gradients, so it can be a learned initial state.
            seed: an int or one int64. All noise of the call, dropout, zoneout and recurrent dropout are functions of
                it, and no random number is drawn: the same seed repeats them. Layer and direction i has the seed
                ``seed + i * 0x9E3779B97F4A7C15`` modulo 2^64, in torch's order of the weights.
            first_step: the noise of step t is that of step ``first_step + t`` of the seed. A sequence in pieces, each
                with the same seed and its own first step, has the noise of one call.
            rows: [batch], int64: the noise of row b is that of row ``rows[b]`` of the seed; b by default.

        >>> lstm, x = NoisyLSTM(3, 4), torch.randn(5, 2, 3)
        >>> begins = torch.tensor([[0, 0], [0, 1], [0, 0], [1, 0], [0, 0]]).bool()
        >>> y, last = lstm(x, reset=begins, seed=7)
        >>> state, steps = None, []
        >>> for t in range(5):
        ...     out, state = lstm(x[t : t + 1], state, reset=begins[t : t + 1], seed=7, first_step=t)
        ...     steps.append(out)
        >>> torch.allclose(torch.cat(steps), y, atol=1e-6)
        True
        """
        called_with = (
            reset is not None or seed is not None or rows is not None or reset_to is not None or first_step != 0
        )
        is_plain = type(input) is Tensor and hx is None and (
            not called_with
            or (type(reset) is Tensor and seed is rows is reset_to is None and type(first_step) is int)
        )  # fmt: skip
        if not is_plain and symbolic(input, hx, reset, reset_to, seed, first_step, rows):
            return as_leaf(
                self,
                input,
                hx,
                reset=reset,
                reset_to=reset_to,
                seed=seed,
                first_step=first_step if called_with else None,
                rows=rows,
            )
        packed = input if isinstance(input, PackedSequence) else None
        x, sizes, unbatched, hx = input_rows(self, input, hx)
        dtype = current(self, "weight_ih_l0").dtype
        if x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(
                f"{type(self).__name__}: RNN input dtype ({x.dtype}) does not match weight dtype ({dtype}). Convert "
                f"input: input.to({dtype}), or convert model: model.to({x.dtype})"
            )
        h, c = first_state(self, x.shape[1] if sizes is None else sizes[0], hx, packed)
        given = None
        if called_with or self.zoneout or self.recurrent_dropout:
            given = state_arguments(self, x, sizes, packed, unbatched, reset, reset_to, seed, first_step, rows)
        noise = noise_of(self)
        if noise is None and not self.hard and self._uses_torch(x, sizes, given):
            if torch.compiler.is_compiling():
                _leave_out_of_graphs()
            y, h_n, c_n = self._torch_layers(x, sizes, h, c)
        else:
            x = of_these_sizes(x) if tracing() else x
            p = [None] * len(self._all_weights) if noise is None else noise.all_p(len(self._all_weights))
            y, h_n, c_n = self._layers(x, sizes, h, c, p, *noise_in_force(self, noise, x), given)
        return self._finish(y, h_n, c_n, packed, unbatched)

    def _uses_torch(self, x: Tensor, sizes: list[int] | None, given: StateArguments | None) -> bool:
        """Whether torch's own layer computes a soft call without noise: noisyact's kernels are not faster."""
        if self.backend != "auto" or self.rounds:
            return False
        if transformed() or exporting():
            return False
        if given is not None and given.need_noisyact(self.training, self.dropout):
            return False
        if tracing():
            return True  # one operator of torch, for any sizes and without noisyact
        why_torch = backends.why_torch_uncached if torch.compiler.is_compiling() else backends.why_torch
        steps, batch = (x.shape[0], x.shape[1]) if sizes is None else (len(sizes), sizes[0])
        layer = self.hidden_size, self.proj_size > 0, backends.tf32()
        return why_torch(self.kind, x.device, call_dtype(x), steps, batch, *layer) is not None

    def _weights(self, names: list[str], p: Tensor | None) -> LayerWeights:
        """The tensors of one layer and direction. `names` is an element of torch's `_all_weights`."""
        tensors = [current(self, name) for name in names]
        w_hr = tensors.pop() if self.proj_size > 0 else None
        b_ih, b_hh = tensors[2:] or (None, None)
        return LayerWeights(tensors[0], tensors[1], b_ih, b_hh, p, w_hr)

    def _layers(
        self, x: Tensor, sizes: list[int] | None, h: Tensor | None, c: Tensor | None, p: list[Any],
        noise: CellNoise, drawn: bool, given: StateArguments | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
        last_h, last_c = [], []
        weights = list(map(self._weights, self._all_weights, p))
        directions = 2 if self.bidirectional else 1
        dropout = self.dropout if self.training else 0.0
        rules = replayed = None
        if given is None:
            seeds = fresh_seeds(drawn, x, len(weights))
        else:
            seeds, rules, replayed = given.seeds_and_rules(x, len(weights), directions, drawn, self.training)
        together = self.num_layers if directions == 1 and not dropout else 1
        x = x.contiguous() if directions == 2 else x  # once for both
        for first in range(0, len(weights), together * directions):
            outputs = []
            for direction in range(directions):
                own = slice(first + direction, first + direction + together)
                y, h_n, c_n = run_layers(
                    self.kind, x, sizes, None if h is None else h[own], None if c is None else c[own], weights[own],
                    noise, seeds=seeds[own], reverse=direction == 1, backend=self.backend,
                    rules=None if rules is None else rules[own],
                )  # fmt: skip
                outputs.append(y)
                last_h.append(h_n)
                last_c.append(c_n)
            x = outputs[0] if directions == 1 else torch.cat(outputs, dim=-1)
            if dropout and first + directions < len(weights):
                if given is None or replayed is None:
                    x = F.dropout(x, dropout)
                else:
                    x = seeded_dropout(x, dropout, replayed[first], sizes, given.first_step, given.rows)
        return x, _together(last_h), _together(last_c) if self.kind == "lstm" else None

    def _torch_layers(
        self, x: Tensor, sizes: list[int] | None, h: Tensor | None, c: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Run torch's own layer, for soft nonlinearities without noise."""
        if h is None:
            count, batch = len(self._all_weights), x.shape[1] if sizes is None else sizes[0]
            h = x.new_zeros(count, batch, self.proj_size or self.hidden_size)
            c = x.new_zeros(count, batch, self.hidden_size) if self.kind == "lstm" else None
        function = {"lstm": torch.lstm, "gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu}
        state = h if c is None else (h, c)
        weights = [current(self, name) for name in self._flat_weights_names]
        shared = (weights, self.bias, self.num_layers, self.dropout, self.training, self.bidirectional)
        if sizes is None or sizes[-1] == sizes[0]:
            batched = x if sizes is None else x.reshape(len(sizes), sizes[0], x.shape[-1])
            y, *states = function[self.kind](batched, state, *shared, False)  # pyright: ignore[reportCallIssue, reportArgumentType]
        else:
            y, *states = function[self.kind](x, torch.tensor(sizes, device="cpu"), state, *shared)  # pyright: ignore[reportCallIssue, reportArgumentType]
        return y.reshape(*x.shape[:-1], y.shape[-1]), states[0], states[1] if c is not None else None

    def _finish(self, y: Tensor, h: Tensor, c: Tensor | None, packed: PackedSequence | None, unbatched: bool) -> Any:
        if packed is not None:
            output = PackedSequence(y, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
            if packed.unsorted_indices is not None:
                h = h.index_select(1, packed.unsorted_indices)
                c = None if c is None else c.index_select(1, packed.unsorted_indices)
        elif unbatched:
            output, h, c = y.squeeze(1), h.squeeze(1), None if c is None else c.squeeze(1)
        else:
            output = y.transpose(0, 1) if self.batch_first else y
        return output, h if c is None else (h, c)

    def extra_repr(self) -> str:
        """torch's description, and the settings that differ from their defaults."""
        parts = [super().extra_repr()]
        if not self.hard:
            parts.append("hard=False")
        if self.eval_noise != "expectation":
            parts.append(f"eval_noise={self.eval_noise!r}")
        if self.backend != "auto":
            parts.append(f"backend={self.backend!r}")
        parts += described_rates(self)
        return ", ".join(parts)


@constant
def _leave_out_of_graphs() -> None:
    """Tell torch.compile to leave torch's own layers out of its graphs, as it does with nn.LSTM: it cannot train them.

    Called when a graph is compiled, because torch.compiler.disable imports the whole compiler.
    """
    if not hasattr(NoisyRecurrent._torch_layers, "_torchdynamo_disable"):
        why = "torch.compile does not support torch's recurrent layers; a noisyact layer with hard=True compiles"
        disabled: Any = torch.compiler.disable(NoisyRecurrent._torch_layers, reason=why)
        NoisyRecurrent._torch_layers = disabled


def _together(states: list[Any]) -> Tensor:
    return states[0] if len(states) == 1 else torch.cat(states)


class NoisyLSTM(NoisyRecurrent):
    """nn.LSTM with hard, noisy nonlinearities.

    ``i, f, o = sigm(.), sigm(.), sigm(.)``, ``g = tanh(.)``, ``c' = f c + i g``, ``h' = o tanh(c')``. Each of the five
    nonlinearities has a learned p for each unit and fresh noise for each unit, example and step.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype: as in
            nn.LSTM, in the same order.
        noise: a scheme or its text; None for hard nonlinearities without noise.
        gate_noise: the scheme of the sigmoids; the same as ``noise`` if None.
        hard: False uses the soft sigmoid and tanh. With ``noise=None`` the layer then equals nn.LSTM.
        eval_noise: "expectation", "hard" or "sample", as in ``NoisyActivation``; "binary" rounds the gates (i, f and o;
            r and z of a GRU) to exactly 0 or 1 in evaluation mode, also of a layer without noise, and is "expectation"
            for the tanh. The attribute `eval_noise` changes it.
        backend: "auto", or "reference", "cpu" or "triton" to force a backend; see ``backend_info``.
        zoneout: the probability that a unit of the state keeps its value at a step (Krueger et al. 2016):
            ``h_t = m h_{t-1} + (1 - m) h'``, with m drawn for each step, row and unit. An LSTM has separate masks for h
            and c, and takes a pair for separate probabilities, (h, c). Its ``h' = o tanh(c')`` uses c' before the
            zoneout of c, as in the paper. In evaluation mode m is its expectation.
        recurrent_dropout: the probability with which a unit of h is dropped from the recurrent product ``W_hh h``, with
            one mask for all steps of a call, scaled by 1 / (1 - rate) (Gal and Ghahramani 2016). The GRU's ``z h``
            uses h without the mask. In evaluation mode nothing is dropped.

    A checkpoint of nn.LSTM loads with ``strict=True``; nn.LSTM loads a NoisyLSTM checkpoint without `noise.` entries.

    >>> lstm = NoisyLSTM(10, 20, num_layers=2, noise="nah")
    >>> output, (h, c) = lstm(torch.randn(5, 3, 10))
    >>> output.shape, h.shape
    (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]))
    """

    __call__: LSTMCall  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None, *,
        noise: Scheme | str | None = NAH(), gate_noise: Scheme | str | None = None, hard: bool = True,  # noqa: B008
        eval_noise: str = "expectation", backend: str = "auto",
        zoneout: float | tuple[float, float] = 0.0, recurrent_dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device,
            dtype, noise, gate_noise, hard, eval_noise, backend, zoneout, recurrent_dropout,
        )  # fmt: skip


class NoisyGRU(NoisyRecurrent):
    """nn.GRU with three hard, noisy nonlinearities: r, z and the candidate n.

    Args: those of :class:`NoisyLSTM`. A nonzero `proj_size` raises an error, as in nn.GRU.

    >>> output, h = NoisyGRU(10, 20, batch_first=True, noise="nan:c=0.3")(torch.randn(3, 5, 10))
    >>> output.shape, h.shape
    (torch.Size([3, 5, 20]), torch.Size([1, 3, 20]))
    """

    __call__: LayerCall  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: Any = None, *,
        noise: Scheme | str | None = NAH(), gate_noise: Scheme | str | None = None, hard: bool = True,  # noqa: B008
        eval_noise: str = "expectation", backend: str = "auto", zoneout: float = 0.0, recurrent_dropout: float = 0.0,
        proj_size: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device,
            dtype, noise, gate_noise, hard, eval_noise, backend, zoneout, recurrent_dropout,
        )  # fmt: skip


class NoisyRNN(NoisyRecurrent):
    """nn.RNN with a noisy hard tanh or a noisy ReLU.

    Args: those of nn.RNN, then the keyword arguments of :class:`NoisyLSTM`. A nonzero `proj_size` raises an error.

    >>> output, h = NoisyRNN(10, 20, noise="nanis")(torch.randn(5, 3, 10))
    >>> output.shape
    torch.Size([5, 3, 20])
    """

    __call__: LayerCall  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, device: Any = None,
        dtype: Any = None, *, noise: Scheme | str | None = NAH(), hard: bool = True,  # noqa: B008
        eval_noise: str = "expectation", backend: str = "auto", zoneout: float = 0.0, recurrent_dropout: float = 0.0,
        proj_size: int = 0,
    ) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity: nonlinearity={nonlinearity!r}, allowed are 'tanh', 'relu'")
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first, dropout,
            bidirectional, proj_size, device, dtype, noise, None, hard, eval_noise, backend, zoneout, recurrent_dropout,
        )  # fmt: skip
        self.nonlinearity = nonlinearity

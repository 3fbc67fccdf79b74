"""Noisy LSTM, GRU and RNN layers with the interface of nn.LSTM, nn.GRU and nn.RNN."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import has_torch_function

from noisyact.compiling import as_leaf, constant, symbolic
from noisyact.ops.dispatch import exporting, tracing, transformed
from noisyact.ops.recurrent.checks import check_sizes
from noisyact.ops.recurrent.types import CellNoise, LayerWeights
from noisyact.recurrent import backends
from noisyact.recurrent.functional import call_dtype, run_layers
from noisyact.recurrent.noise import current, fresh_seeds, noise_in_force, recurrent_noise, reset_recurrent
from noisyact.schemes import NAH, Scheme

__all__ = ["NoisyGRU", "NoisyLSTM", "NoisyRNN", "NoisyRecurrent"]


class NoisyRecurrent(nn.RNNBase):
    """Base class of NoisyLSTM, NoisyGRU and NoisyRNN.

    The parameters (names, shapes and order), the arguments and the results are those of nn.RNNBase. The submodule
    `noise` holds everything that nn.RNNBase does not have.
    """

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int, bias: bool, batch_first: bool,
        dropout: float, bidirectional: bool, proj_size: int, device: Any, dtype: Any, noise: Scheme | str | None,
        gate_noise: Scheme | str | None, hard: bool, eval_noise: str, backend: str,
    ) -> None:  # fmt: skip
        self.backend = backends.check(backend)
        if proj_size and mode != "LSTM":
            raise ValueError(f"proj_size={proj_size}: proj_size argument is only supported for LSTM, not RNN or GRU")
        super().__init__(
            mode, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device,
            dtype,
        )  # fmt: skip
        self.kind = mode.lower()
        self.hard = hard
        self.noise = recurrent_noise(
            self.kind, noise, gate_noise, self.noise_names(), hidden_size, eval_noise, device, dtype
        )
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

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the output and the final state. The input may be batched, unbatched or packed, as in nn.LSTM."""
        if symbolic(input, hx):
            return as_leaf(self, input, hx)
        packed = input if isinstance(input, PackedSequence) else None
        x, sizes, unbatched, hx = self._rows(input, hx)
        dtype = current(self, "weight_ih_l0").dtype
        if x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(
                f"{type(self).__name__}: RNN input dtype ({x.dtype}) does not match weight dtype ({dtype}). Convert "
                f"input: input.to({dtype}), or convert model: model.to({x.dtype})"
            )
        h, c = self._first_state(x.shape[1] if sizes is None else sizes[0], hx, packed)
        noise = self.noise
        if self._uses_torch(x, sizes):
            if torch.compiler.is_compiling():
                _leave_out_of_graphs()
            y, h_n, c_n = self._torch_layers(x, sizes, h, c)
        else:
            x = _of_these_sizes(x) if tracing() else x
            p = [None] * len(self._all_weights) if noise is None else noise.all_p(len(self._all_weights))
            y, h_n, c_n = self._layers(x, sizes, h, c, p, *noise_in_force(noise, self.training, self.hard, x))
        return self._finish(y, h_n, c_n, packed, unbatched)

    def _uses_torch(self, x: Tensor, sizes: list[int] | None) -> bool:
        """Whether torch's own layer computes a call: it can, and noisyact's kernels are not faster."""
        if self.backend != "auto" or self.hard or self.noise is not None or transformed() or exporting():
            return False
        if tracing():
            return True  # one operator of torch, for any sizes and without noisyact
        why_torch = backends.why_torch_uncached if torch.compiler.is_compiling() else backends.why_torch
        steps, batch = (x.shape[0], x.shape[1]) if sizes is None else (len(sizes), sizes[0])
        layer = self.hidden_size, self.proj_size > 0, backends.tf32()
        return why_torch(self.kind, x.device, call_dtype(x), steps, batch, *layer) is not None

    def _rows(self, input: Tensor | PackedSequence, hx: Any) -> tuple[Tensor, list[int] | None, bool, Any]:
        """The input, [steps, batch, input] or packed [rows, input], and if packed the number of rows at each step."""
        if isinstance(input, PackedSequence):
            if tracing():
                raise RuntimeError("torch.jit.trace cannot follow a PackedSequence: trace the layer with padded input")
            if exporting():
                raise RuntimeError(
                    f"{type(self).__name__}: a PackedSequence cannot be exported, because the number of rows at each "
                    "step would be a constant of the graph: export the layer with padded input, and take each "
                    "sequence's last output at its length"
                )
            self.check_input(input.data, input.batch_sizes)
            sizes = input.batch_sizes.tolist()
            check_sizes(sizes)
            if sizes[-1] < 1 or sum(sizes) != input.data.shape[0]:
                raise ValueError(
                    f"{type(self).__name__}: the batch sizes of a PackedSequence must be at least 1 and sum to its "
                    f"{input.data.shape[0]} rows; they sum to {sum(sizes)} and end with {sizes[-1]}"
                )
            return input.data, sizes, False, hx
        if not isinstance(input, Tensor) and not has_torch_function((input,)):
            raise TypeError(f"input must be a tensor or a PackedSequence, not {type(input).__name__}")
        if not input.is_floating_point():
            raise TypeError(f"input must be real floating point, not {input.dtype}")
        if input.dim() not in (2, 3):
            raise ValueError(f"{type(self).__name__}: input must be 2-D or 3-D, not of shape {tuple(input.shape)}")
        unbatched = input.dim() == 2
        x = input.unsqueeze(1) if unbatched else input.transpose(0, 1) if self.batch_first else input
        if x.shape[2] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.shape[2]}"
            )
        if x.shape[0] == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        if unbatched and hx is not None:
            states = hx if isinstance(hx, (tuple, list)) else (hx,)
            wrong = [s.dim() for s in states if isinstance(s, Tensor) and s.dim() != 2]
            if wrong:
                raise RuntimeError(f"For unbatched 2-D input, hx should be 2-D but got {wrong[0]}-D")
            states = tuple(s.unsqueeze(1) if isinstance(s, Tensor) else s for s in states)
            hx = states if isinstance(hx, (tuple, list)) else states[0]
        return x, None, unbatched, hx

    def _first_state(self, batch: int, hx: Any, packed: PackedSequence | None) -> tuple[Tensor | None, Tensor | None]:
        """The first state, each [layers and directions, batch, units]; None for zeros."""
        if hx is None:
            return None, None
        count = len(self._all_weights)
        shapes = [(count, batch, self.proj_size or self.hidden_size)]
        if self.kind == "lstm":
            shapes.append((count, batch, self.hidden_size))
        states: list[Any] = list(hx) if isinstance(hx, (tuple, list)) and self.kind == "lstm" else [hx]
        if len(states) != len(shapes) or not all(isinstance(state, Tensor) for state in states):
            wanted = "a tensor" if len(shapes) == 1 else "the tensors (h, c)"
            raise TypeError(f"{type(self).__name__}: hx must be {wanted}, not {_described(hx)}")
        for place, (state, shape) in enumerate(zip(states, shapes, strict=True)):
            if tuple(state.shape) != shape:
                name = f"hx[{place}]"
                raise RuntimeError(
                    f"{name}: Expected {name.replace('hx', 'hidden')} size {shape}, got {list(state.shape)}"
                )
        order = None if packed is None else packed.sorted_indices
        states = [state if order is None else state.index_select(1, order) for state in states]
        return states[0], states[1] if self.kind == "lstm" else None

    def _weights(self, names: list[str], p: Tensor | None) -> LayerWeights:
        """The tensors of one layer and direction. `names` is an element of torch's `_all_weights`."""
        tensors = [current(self, name) for name in names]
        w_hr = tensors.pop() if self.proj_size > 0 else None
        return LayerWeights(*tensors, p=p, w_hr=w_hr)

    def _layers(
        self, x: Tensor, sizes: list[int] | None, h: Tensor | None, c: Tensor | None, p: list[Any],
        noise: CellNoise, drawn: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
        last_h, last_c = [], []
        weights = list(map(self._weights, self._all_weights, p))
        seeds = fresh_seeds(drawn, x, len(weights))
        directions = 2 if self.bidirectional else 1
        dropout = self.dropout if self.training else 0.0
        together = self.num_layers if directions == 1 and not dropout else 1
        x = x.contiguous() if directions == 2 else x  # once for both
        for first in range(0, len(weights), together * directions):
            outputs = []
            for direction in range(directions):
                own = slice(first + direction, first + direction + together)
                y, h_n, c_n = run_layers(
                    self.kind, x, sizes, None if h is None else h[own], None if c is None else c[own], weights[own],
                    noise, seeds=seeds[own], reverse=direction == 1, backend=self.backend,
                )  # fmt: skip
                outputs.append(y)
                last_h.append(h_n)
                last_c.append(c_n)
            x = outputs[0] if directions == 1 else torch.cat(outputs, dim=-1)
            if dropout and first + directions < len(weights):
                x = F.dropout(x, dropout)
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
            y, *states = function[self.kind](x, torch.tensor(sizes), state, *shared)  # pyright: ignore[reportCallIssue, reportArgumentType]
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
        if self.backend != "auto":
            parts.append(f"backend={self.backend!r}")
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


def _of_these_sizes(x: Tensor) -> Tensor:
    """Return x, [steps, batch, input], through operations that make a trace raise for other sizes than its example's.

    The trace contains the time loop for its example's sizes. For other sizes its result would be wrong.
    """
    return torch.stack(torch.stack(x.unbind(0)).unbind(1), 1)


def _together(states: list[Any]) -> Tensor:
    return states[0] if len(states) == 1 else torch.cat(states)


def _described(hx: Any) -> str:
    parts = [type(part).__name__ for part in hx] if isinstance(hx, (tuple, list)) else []
    return (
        f"{type(hx).__name__} of {', '.join(parts) or 'nothing'}"
        if isinstance(hx, (tuple, list))
        else type(hx).__name__
    )


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
        eval_noise: "expectation", "hard" or "sample", as in NoisyActivation.
        backend: "auto", or "reference", "cpu" or "triton" to force a backend; see backend_info.

    A checkpoint of nn.LSTM loads with ``strict=True``; nn.LSTM loads a NoisyLSTM checkpoint without `noise.` entries.

    >>> lstm = NoisyLSTM(10, 20, num_layers=2, noise="nah")
    >>> output, (h, c) = lstm(torch.randn(5, 3, 10))
    >>> output.shape, h.shape
    (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]))
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None, *,
        noise: Scheme | str | None = NAH(), gate_noise: Scheme | str | None = None, hard: bool = True,  # noqa: B008
        eval_noise: str = "expectation", backend: str = "auto",
    ) -> None:  # fmt: skip
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device,
            dtype, noise, gate_noise, hard, eval_noise, backend,
        )  # fmt: skip


class NoisyGRU(NoisyRecurrent):
    """nn.GRU with three hard, noisy nonlinearities: r, z and the candidate n.

    Args: those of :class:`NoisyLSTM`. A nonzero `proj_size` raises an error, as in nn.GRU.

    >>> output, h = NoisyGRU(10, 20, batch_first=True, noise="nan:c=0.3")(torch.randn(3, 5, 10))
    >>> output.shape, h.shape
    (torch.Size([3, 5, 20]), torch.Size([1, 3, 20]))
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: Any = None, *,
        noise: Scheme | str | None = NAH(), gate_noise: Scheme | str | None = None, hard: bool = True,  # noqa: B008
        eval_noise: str = "expectation", backend: str = "auto", proj_size: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device,
            dtype, noise, gate_noise, hard, eval_noise, backend,
        )  # fmt: skip


class NoisyRNN(NoisyRecurrent):
    """nn.RNN with a noisy hard tanh or a noisy ReLU.

    Args: those of nn.RNN, then the keyword arguments of :class:`NoisyLSTM`. A nonzero `proj_size` raises an error.

    >>> output, h = NoisyRNN(10, 20, noise="nanis")(torch.randn(5, 3, 10))
    >>> output.shape
    torch.Size([5, 3, 20])
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, device: Any = None,
        dtype: Any = None, *, noise: Scheme | str | None = NAH(), hard: bool = True,  # noqa: B008
        eval_noise: str = "expectation", backend: str = "auto", proj_size: int = 0,
    ) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity: nonlinearity={nonlinearity!r}, allowed are 'tanh', 'relu'")
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first, dropout,
            bidirectional, proj_size, device, dtype, noise, None, hard, eval_noise, backend,
        )  # fmt: skip
        self.nonlinearity = nonlinearity

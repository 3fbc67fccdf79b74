"""The rule by which a soft layer without noise uses noisyact's kernels or torch's own layer. Both compute the same.

A ratio is the time of the kernels over that of torch's layer, forward + backward unless inference is named.

`noisyact bench recurrent --grid` measures it, in the column of soft layers.

On a CPU (x86-64 with AVX-512, torch 2.13, float32, one thread, the least CPU time of 7 calls), over 30 drawn shapes
with 1 to 132 steps, 1 to 354 rows, 8 to 545 units and 1 to 3 layers:

- GRU of at least 4 steps (24 shapes): 0.05 to 0.99, median 0.51; in inference 0.12 to 0.93, median 0.65.
- RNN of at least 12 steps (13 shapes): 0.09 to 0.82, median 0.50; in inference 0.26 to 0.84, median 0.57.
- LSTM: 0.58 to 1.59, median 0.97; in inference 0.69 to 1.90, median 1.04. torch's layer calls oneDNN. Five LSTMs of 793
  to 1,020 units and at most 6 rows have 0.34 to 0.80, too few cases for a rule.
- LSTM with a projection, which oneDNN does not have, of at least 4 steps, in 10 other shapes: 0.13 to 0.90, median
  0.71; in inference 0.26 to 0.93, median 0.78.

A second run of GRU and RNN gave 0.07 to 0.90 and 0.14 to 0.88, and one GRU of 4 steps 1.06 in inference. With two
threads 9 shapes were measured, on a machine in use: no GRU, RNN or projected LSTM of that many steps was above 0.57.

A call has a larger fixed cost than torch's. For one or two steps of up to 72 units it decides: GRU 1.07 to 1.35, RNN
1.40 to 1.90. At 8 steps the RNN's inference has 0.93 to 1.11.

On a GPU (H200, torch 2.11) the rule is the table `_ON_GPU`, drawn from `benchmarks/h200-grid.json`: 113 drawn shapes in
float32 with and without TF32, bfloat16 and float16, and 11 fixed rows of 128 units, with one option each or in float64.
In that record the steps of layers too large for one launch were not replayed as CUDA graphs, as they are now, so called
from Python these are faster than it says. A line of the table has the limits of the drawn rows in it, which are all
faster, and of the 20 tuned ones of `benchmarks/h200-recurrent.json`. A float16 GRU is the exception: its rows have 200
steps or more, its limit is 20. The tuned rows have noise, and the rule selects them all (0.22 to 0.69 called from
Python, 0.47 to 0.97 as CUDA graphs).

It selects 48 of the 113 drawn rows: 18 LSTMs, 15 GRUs and 15 RNNs. Their ratios without noise are

- called from Python: 0.09 to 0.94, median 0.48;
- as CUDA graphs: 0.10 to 0.96, median 0.56;
- in inference: 0.05 to 0.95, median 0.35.

The limits were chosen on the same rows, so this is no independent test of the rule.

The rule leaves 65 drawn rows to torch. 27 of them would have been faster, called from Python and as CUDA graphs. 22
of these are slower in inference, and the other five are too different from each other for a line. 32 would have been
more than 5% slower in one of the two, up to 2.30 called from Python and 2.91 as CUDA graphs.

Of the fixed rows it selects none. Packed LSTM and GRU (0.35 and 0.35 called from Python) and an LSTM without bias
(0.89) would have been faster. The other eight would have been slower, called from Python or as CUDA graphs.
Bidirectional layers (LSTM 1.39, GRU 1.53) and dropout between layers (1.14 and 1.36) were measured at 128 units only.
The rule does not see either of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from noisyact.ops.recurrent.gpu.plan import in_one_launch

__all__ = ["BATCHES", "MANY_STEPS", "why_torch_on_cpu", "why_torch_on_gpu"]

BATCHES, MANY_STEPS = (1, 32, 64, 128, 512), 1000
"""If torch's layer is faster for these batches and many steps, it is for all: each line has one of them."""
_STEPS_ON_CPU = {"lstm": 4, "gru": 4, "rnn_tanh": 12, "rnn_relu": 12}
"""The smallest number of steps for which the C kernels are faster; of LSTMs for those with a projection."""


class _Measured(NamedTuple):
    """What drawn rows have in common for which the GPU kernels are faster."""

    kinds: tuple[str, ...]
    dtypes: tuple[str, ...]
    """"tf32" is float32 with TF32 products, and "float32" is without."""
    units: tuple[int, int]
    """The smallest and the largest number of units."""
    steps: int
    """The smallest number of steps."""
    rows: tuple[int, int]
    """The smallest and the largest batch."""
    one_launch: bool = True
    """Whether one launch has all steps. Otherwise each step is a product and a launch."""


_ON_GPU = (
    _Measured(("lstm",), ("bfloat16",), (21, 1500), 5, (1, 1762)),
    _Measured(("gru",), ("bfloat16",), (23, 1500), 1, (1, 1932)),
    _Measured(("rnn_tanh",), ("bfloat16",), (11, 733), 2, (1, 121)),
    _Measured(("lstm",), ("float16", "tf32", "float32"), (131, 1500), 3, (1, 64)),
    _Measured(("gru",), ("tf32",), (154, 1710), 13, (1, 168)),
    _Measured(("gru",), ("float16",), (345, 1024), 20, (2, 64)),
    _Measured(("rnn_tanh",), ("float16", "tf32", "float32"), (523, 1970), 5, (1, 31)),
    _Measured(("lstm",), ("tf32", "float32"), (1857, 3317), 1, (10, 283), one_launch=False),
    _Measured(("gru",), ("float32",), (1664, 2469), 5, (92, 214), one_launch=False),
    _Measured(("lstm", "gru", "rnn_tanh"), ("float16",), (360, 668), 31, (343, 1182), one_launch=False),
)


def why_torch_on_cpu(kind: str, dtype: torch.dtype, steps: int, projection: bool = False) -> str | None:
    """The reason why torch's layer computes a call on a CPU; None if the C kernels are faster.

    Args:
        kind: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        dtype: the dtype of the computation.
        steps: the number of steps.
        projection: whether the LSTM has a projection.

    >>> why_torch_on_cpu("gru", torch.float32, 20) is None
    True
    >>> why_torch_on_cpu("gru", torch.float32, 1)
    'nn.GRU is faster for fewer than 4 steps'
    """
    if dtype == torch.float64:
        return "the C kernels were not found to be faster in float64"
    if dtype != torch.float32:
        return f"the C kernels compute in float32, not in {str(dtype).removeprefix('torch.')}"
    if kind == "lstm" and not projection:
        return "nn.LSTM is as fast as the C kernels"
    least = _STEPS_ON_CPU[kind]
    return f"nn.{kind.partition('_')[0].upper()} is faster for fewer than {least} steps" if steps < least else None


def why_torch_on_gpu(
    kind: str, dtype: torch.dtype, steps: int, batch: int, hidden: int, tf32: bool, device_processors: int,
    projection: bool = False,
) -> str | None:  # fmt: skip
    """The reason why torch's layer computes a call on a GPU; None if the Triton kernels are faster.

    Args:
        kind: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        dtype: the dtype of the computation.
        steps: the number of steps.
        batch: the number of sequences.
        hidden: the number of units.
        tf32: whether float32 products may use TF32.
        device_processors: the number of programs that can run at once.
        projection: whether the LSTM has a projection.

    >>> why_torch_on_gpu("lstm", torch.float32, 20, 20, 650, True, 132) is None
    True
    >>> why_torch_on_gpu("gru", torch.float32, 20, 20, 650, False, 132)
    'the Triton kernels were not found to be faster than nn.GRU in float32 for 650 units, 20 steps and 20 rows'
    """
    unknown = f"the Triton kernels were not found to be faster than nn.{kind.partition('_')[0].upper()}"
    if projection:
        return f"{unknown} with a projection"
    name = "tf32" if dtype == torch.float32 and tf32 else str(dtype).removeprefix("torch.")
    lines = [line for line in _ON_GPU if kind in line.kinds]
    if not lines:
        return f"{unknown} with relu"
    lines = [line for line in lines if name in line.dtypes]
    if not lines:
        return f"{unknown} in {name}{' without TF32' if name == 'float32' else ''}"
    one_launch = in_one_launch(kind, batch, hidden, dtype.itemsize, device_processors)
    for line in lines:
        (fewest, most), (least, largest) = line.units, line.rows
        fits = fewest <= hidden <= most and steps >= line.steps and least <= batch <= largest
        if fits and one_launch == line.one_launch:
            return None
    if not one_launch and any(line.one_launch for line in lines):
        return f"{unknown} for {hidden:,} units and {batch:,} rows, which are too many for one launch"
    return f"{unknown} in {name} for {hidden:,} units, {steps:,} steps and {batch:,} rows"

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

On a GPU (H200, torch 2.11) the rule is drawn from `benchmarks/h200-grid.json`: 46 drawn shapes in float32 with and
without TF32, bfloat16 and float16, and 11 fixed rows of 128 units, with one option each or in float64. The kernels are
used if one launch has all steps of a layer, the batch is at most 135, and

- an LSTM has at least 4 steps and 200 to 1,500 units, in bfloat16, float16 or float32 with or without TF32;
- a GRU has at least 20 steps and 200 to 1,710 units, in bfloat16, float16 or float32 with TF32;
- an RNN with tanh has at least 2 steps and 87 to 201 units, in bfloat16.

These limits are those of the rows: of the drawn ones that are faster, and of the 20 tuned ones of
`benchmarks/h200-recurrent.json`. The tuned ones have noise, and the rule selects them all (0.22 to 0.69 called from
Python, 0.47 to 0.97 as CUDA graphs). It selects 12 of the 46 drawn rows: 6 LSTMs, 2 GRUs and 4 RNNs. Their ratios
without noise are

- called from Python: 0.03 to 0.82, median 0.40;
- as CUDA graphs: 0.24 to 0.71, median 0.53;
- in inference: 0.04 to 0.68, median 0.26.

The limits were chosen on the same rows, so this is no independent test of the rule. Only one of the 12 is in float32
without TF32, an LSTM of 693 units, and none is in float16, which the tuned rows have.

The rule leaves 34 drawn rows to torch. 13 of them would have been faster, called from Python and as CUDA graphs: three
LSTMs of 1 to 3 steps, two of which are slower in inference (1.34 and 1.63); an LSTM of 151 units; five layers of up to
25 units; three layers too large for one launch; and an RNN of 1,970 units in float32 with TF32. 17 would have been more
than 5% slower in one of the two, up to 1.69 called from Python and 4.61 as CUDA graphs.

Of the fixed rows it selects none. Packed LSTM and GRU (0.31 and 0.36 called from Python) and an LSTM without bias
(0.85) would have been faster. The other eight would have been slower, called from Python or as CUDA graphs.
Bidirectional layers (LSTM 1.35, GRU 1.45) and dropout between layers (1.07 and 1.24) were measured at 128 units only.
The rule does not see either of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from noisyact.ops.recurrent.gpu.plan import in_one_launch

__all__ = ["BATCHES", "MANY_STEPS", "why_torch_on_cpu", "why_torch_on_gpu"]

BATCHES, MANY_STEPS = (1, 32, 64), 1000
"""If torch's layer is faster for these batches and many steps, it is for all: they are the rows of a GPU program."""
_STEPS_ON_CPU = {"lstm": 4, "gru": 4, "rnn_tanh": 12, "rnn_relu": 12}
"""The smallest number of steps for which the C kernels are faster; of LSTMs for those with a projection."""


class _Measured(NamedTuple):
    """What the rows of a kind have in common for which the GPU kernels are faster."""

    dtypes: tuple[torch.dtype, ...]
    """The dtypes but for float32."""
    tf32: tuple[bool, ...]
    """Of float32: with TF32, without, or both."""
    steps: int
    """The smallest number of steps."""
    units: tuple[int, int]
    """The smallest and the largest number of units."""


_ON_GPU = {
    "lstm": _Measured((torch.bfloat16, torch.float16), (True, False), 4, (200, 1500)),
    "gru": _Measured((torch.bfloat16, torch.float16), (True,), 20, (200, 1710)),
    "rnn_tanh": _Measured((torch.bfloat16,), (), 2, (87, 201)),
}
_BATCH_ON_GPU = 135
"""The largest batch of these rows."""


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
    'the Triton kernels were not found to be faster than nn.GRU in float32 without TF32'
    """
    name = f"nn.{kind.partition('_')[0].upper()}"
    unknown = f"the Triton kernels were not found to be faster than {name}"
    if projection:
        return f"{unknown} with a projection"
    if kind not in _ON_GPU:
        return f"{unknown} with relu"
    rows = _ON_GPU[kind]
    if not (tf32 in rows.tf32 if dtype == torch.float32 else dtype in rows.dtypes):
        without = " without TF32" if dtype == torch.float32 and not tf32 else ""
        return f"{unknown} in {str(dtype).removeprefix('torch.')}{without}"
    least, most = rows.units
    if hidden < least:
        return f"{unknown} for fewer than {least} units"
    if hidden > most:
        return f"{unknown} for more than {most:,} units"
    if steps < rows.steps:
        return f"{unknown} for fewer than {rows.steps} steps"
    if batch > _BATCH_ON_GPU:
        return f"{unknown} for more than {_BATCH_ON_GPU} rows"
    if not in_one_launch(kind, batch, hidden, dtype.itemsize, device_processors):
        return "the layer and its batch are too large for one launch"
    return None

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

On a GPU (H200, torch 2.11, cuDNN 9.19), for layers of 200 to 1,500 units whose steps are all in one launch, the ratio
is 0.15 to 0.47 called from Python and 0.33 to 0.77 as CUDA graphs, over 36 cases in float32 with TF32, bfloat16 and
float16. A float32 GRU of 128 units has a ratio of 1.8. The rule extends these measurements to larger layers, as long as
one launch is enough.
"""

from __future__ import annotations

import torch

from noisyact.ops.recurrent.gpu.plan import in_one_launch

__all__ = ["BATCHES", "MANY_STEPS", "why_torch_on_cpu", "why_torch_on_gpu"]

BATCHES, MANY_STEPS = (1, 32, 64), 1000
"""If torch's layer is faster for these batches and many steps, it is for all: they are the rows of a GPU program."""
_STEPS_ON_CPU = {"lstm": 4, "gru": 4, "rnn_tanh": 12, "rnn_relu": 12}
"""The smallest number of steps for which the C kernels are faster; of LSTMs for those with a projection."""
_UNITS_ON_GPU = 200
"""The smallest number of units for which the GPU kernels were found to be faster."""


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
    kind: str, dtype: torch.dtype, batch: int, hidden: int, tf32: bool, device_processors: int, projection: bool = False
) -> str | None:
    """The reason why torch's layer computes a call on a GPU; None if the Triton kernels are faster.

    Args:
        kind: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        dtype: the dtype of the computation.
        batch: the number of sequences.
        hidden: the number of units.
        tf32: whether float32 products may use TF32.
        device_processors: the number of programs that can run at once.
        projection: whether the LSTM has a projection.

    >>> why_torch_on_gpu("lstm", torch.float32, 20, 650, True, 132) is None
    True
    >>> why_torch_on_gpu("lstm", torch.float32, 20, 650, False, 132)
    'TF32 is off, and without it cuDNN is faster'
    """
    if kind not in ("lstm", "gru"):
        return "the Triton kernels were not found to be faster than nn.RNN"
    if projection:
        return "the Triton kernels were not found to be faster than nn.LSTM with a projection"
    if dtype == torch.float64:
        return "the Triton kernels were not found to be faster in float64"
    if hidden < _UNITS_ON_GPU:
        return f"cuDNN is faster for fewer than {_UNITS_ON_GPU} units"
    if dtype == torch.float32 and not tf32:
        return "TF32 is off, and without it cuDNN is faster"
    if not in_one_launch(kind, batch, hidden, dtype.itemsize, device_processors):
        return "the layer and its batch are too large for one launch"
    return None

"""The Neural Turing Machine: a controller, a memory of N rows of width W, and heads that read and write it.

A head looks at the rows through a weighting, [batch, heads, N], which comes from what the controller says in four
stages: content (rows like a key), interpolation (with the weighting before), shift (to neighbouring rows), sharpening.
All heads look at the memory of the step before; what the read heads find goes into the controller at the next step.

What Graves et al. leave open: the heads start at row 0, the memory with a small constant, the reads with zeros;
keys and what is added to the memory are in [-1, 1]; all that the controller tells the heads
is limited to [-20, 20], which bounds strengths and powers. So no stage overflows, and no gradient divides by zero.

A step is some 40 small operations, and 110 in backward. All of it that has no weights is one function of three tensors,
`turn`; on a GPU that is one kernel, and another in backward (ntm_kernels.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisyact as na
from noisyact.ops import triton

__all__ = ["NTM", "content", "interpolate", "sharpen", "shift", "turn", "write"]

SHIFTS = 3
"""A head may move by -1, 0 or 1 rows."""
LIMIT = 20.0
FIRST_MEMORY = 1e-6


def content(key: Tensor, strength: Tensor, memory: Tensor) -> Tensor:
    """``softmax_i(strength cos(key, memory_i))``. The cosine of a row or key of zeros is 0, with a finite gradient.

    Args:
        key: [batch, heads, W].
        strength: [batch, heads, 1].
        memory: [batch, N, W].

    Returns: [batch, heads, N].

    >>> memory = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]])
    >>> content(torch.tensor([[[3.0, 0.0]]]), torch.tensor([[[1.0]]]), memory)
    tensor([[[0.5761, 0.2119, 0.2119]]])
    """
    scale = strength * _inverse_norm(key).unsqueeze(2) * _inverse_norm(memory).unsqueeze(1)
    return torch.softmax(scale * (key @ memory.transpose(1, 2)), dim=2)


def _inverse_norm(vectors: Tensor) -> Tensor:
    return torch.rsqrt(vectors.square().sum(dim=2) + 1e-6)


def interpolate(gate: Tensor, found: Tensor, before: Tensor) -> Tensor:
    """``gate found + (1 - gate) before``; gate: [batch, heads, 1].

    >>> interpolate(torch.tensor([[[0.25]]]), torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]]))
    tensor([[[0.2500, 0.7500]]])
    """
    return torch.lerp(before, found, gate)


def shift(weighting: Tensor, by: Tensor) -> Tensor:
    """The weighting moved by -1, 0 and 1 rows, round the end, with the shares `by`, [batch, heads, 3].

    >>> shift(torch.tensor([[[1.0, 0.0, 0.0, 0.0]]]), torch.tensor([[[0.2, 0.7, 0.1]]]))
    tensor([[[0.7000, 0.1000, 0.0000, 0.2000]]])
    """
    back, stay, on = by.split(1, dim=2)
    moved = torch.addcmul(stay * weighting, back, weighting.roll(-1, dims=2))
    return torch.addcmul(moved, on, weighting.roll(1, dims=2))


def sharpen(weighting: Tensor, power: Tensor) -> Tensor:
    """``w_i^power / sum_j w_j^power``, by logarithms, so that no power underflows to 0 / 0; power: [batch, heads, 1].

    >>> sharpen(torch.tensor([[[0.75, 0.25]]]), torch.tensor([[[2.0]]]))
    tensor([[[0.9000, 0.1000]]])
    """
    return torch.softmax(power * torch.log(weighting + 1e-12), dim=2)


def write(memory: Tensor, weighting: Tensor, erase: Tensor, add: Tensor) -> Tensor:
    """``memory_i prod_k (1 - w_ki erase_k) + sum_k w_ki add_k``: all heads erase, then all add.

    Args:
        memory: [batch, N, W].
        weighting: [batch, heads, N].
        erase: [batch, heads, W], in [0, 1].
        add: [batch, heads, W].

    >>> memory, row = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[[0.0, 1.0]]])
    >>> write(memory, row, torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[5.0, 5.0]]]))
    tensor([[[1., 2.], [5., 9.]]])
    """
    for kept in (1.0 - weighting.unsqueeze(3) * erase.unsqueeze(2)).unbind(1):
        memory = memory * kept
    return memory + weighting.transpose(1, 2) @ add


def turn(told: Tensor, memory: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What all heads do in a step: they address, those that read do so, the others write.

    Args:
        told: [batch, heads (4 W + 12)], by the controller: what is erased, what is added, the keys (those of the heads
            that read first), then for each head strength, power, gate and shifts.
        memory: [batch, N, W].
        before: [batch, 2 heads, N], the weightings of the step before, those of the heads that read first.

    Returns: the reads, [batch, heads W]; the memory and the weightings after the step.
    """
    heads, width = before.shape[1] // 2, memory.shape[2]
    vectors, scalars = told.clamp(-LIMIT, LIMIT).split([4 * heads * width, 2 * heads * (3 + SHIFTS)], dim=1)
    erase, signed = vectors.unflatten(1, (-1, width)).split([heads, 3 * heads], dim=1)
    add, key = torch.tanh(signed).split([heads, 2 * heads], dim=1)
    positive, gate, by = scalars.unflatten(1, (2 * heads, -1)).split([2, 1, SHIFTS], dim=2)
    strength, power = F.softplus(positive).split(1, dim=2)
    weighting = interpolate(torch.sigmoid(gate), content(key, strength, memory), before)
    weighting = sharpen(shift(weighting, torch.softmax(by, dim=2)), 1.0 + power)
    reading, writing = weighting.chunk(2, dim=1)
    return (reading @ memory).flatten(1), write(memory, writing, torch.sigmoid(erase), add), weighting


class NTM(nn.Module):
    """A Neural Turing Machine with as many read heads as write heads.

    Args:
        inputs: channels of the input.
        outputs: of the output.
        hidden: units of the controller.
        heads: read heads, and as many write heads.
        rows: N of the memory.
        width: W of the memory.
        hard: the controller, one layer of tanh, has the hard tanh.
        noise: scheme of the controller's hard tanh, None for no noise.
        fused: on a GPU, and for a power of two of rows, what the heads do in a step is one kernel.

    >>> machine = NTM(8, 6, hidden=32, heads=1, rows=16, width=10, noise=na.NAN(clip=True))
    >>> machine(torch.rand(12, 5, 8), answer=3).shape
    torch.Size([3, 5, 6])
    """

    def __init__(
        self, inputs: int, outputs: int, *, hidden: int, heads: int, rows: int, width: int, hard: bool = True,
        noise: na.Scheme | None = None, fused: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.rows, self.width, self.fused = heads, rows, width, fused
        reads, address = heads * width, width + 3 + SHIFTS
        self.to_heads = nn.Linear(hidden, 2 * heads * address + 2 * heads * width)
        self.output = nn.Linear(hidden + reads, outputs)
        for layer in (self.to_heads, self.output):
            _glorot(layer)
        # Last: the weights of a seed are the same whether the noise draws a p or not.
        self.controller = _Controller(inputs + reads, hidden, hard, noise)

    def forward(self, x: Tensor, answer: int) -> Tensor:
        """[steps, batch, inputs] to the logits of the last `answer` steps, [answer, batch, outputs]."""
        batch = x.shape[1]
        memory = x.new_full((batch, self.rows, self.width), FIRST_MEMORY)
        weighting = x.new_zeros(batch, 2 * self.heads, self.rows)
        weighting[:, :, 0].fill_(1.0)
        reads = x.new_zeros(batch, self.heads * self.width)
        heads = _turn_on(x.device, self.rows) if self.fused else turn
        controller = self.controller.start(x)
        seen = []
        for step in range(len(x)):
            h = controller(step, reads)
            reads, memory, weighting = heads(self.to_heads(h), memory, weighting)
            if step >= len(x) - answer:
                seen.append(torch.cat([h, reads], dim=1))
        return self.output(torch.stack(seen))


def _turn_on(device: torch.device, rows: int) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    # Triton 3.6 compiles the kernels wrongly for one warp and 33 rows: the gradient of a shift is off. It was right for
    # all powers of two that were tried, 8 to 128, so the others are left to torch.
    if triton.obstacle(device) is not None or rows & (rows - 1):
        return turn
    from noisyact_lab.models import ntm_kernels

    return ntm_kernels.turn


class _Controller(nn.Module):
    """One layer of tanh; it has no state."""

    def __init__(self, inputs: int, hidden: int, hard: bool, noise: na.Scheme | None) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, hidden)
        _glorot(self.linear)
        if noise is not None:
            self.activation = na.NoisyHardTanh(noise, num_parameters=hidden)
        else:
            self.activation = nn.Hardtanh() if hard else nn.Tanh()

    def start(self, x: Tensor) -> Callable[[int, Tensor], Tensor]:
        """The controller of a sequence: the step and the reads of the step before, [batch, heads W], to h.

        The products with the inputs of all steps are one.
        """
        of_input, of_reads = self.linear.weight.tensor_split([x.shape[2]], dim=1)
        given, of_reads = F.linear(x, of_input, self.linear.bias).unbind(), of_reads.t()
        return lambda step, reads: self.activation(torch.addmm(given[step], reads, of_reads))


def _glorot(layer: nn.Linear) -> None:
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)

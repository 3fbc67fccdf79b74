"""Random noise: one seed is drawn per call, and each xi is a function of the seed and the element's position.

The differentiable operations take the seed as an argument and never draw random numbers. Code that re-executes them
(backward, activation checkpointing, a compiled graph) therefore reproduces the noise of the forward pass.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.fx.traceback import get_current_meta

from noisyact import activation_checkpointing
from noisyact.compiling import constant

try:
    from torch._functorch import config as _partitioner
except ImportError:  # neither the module nor its settings are public API of torch
    _partitioner = None

__all__ = [
    "draw_seed",
    "draw_seeds",
    "layer_seeds",
    "recurrent_mask",
    "recurrent_normal",
    "recurrent_positions",
    "seeds_in_blocks",
    "standard_normal",
    "threshold",
]

_MASK = 0xFFFFFFFF
_ROUNDS = 7
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
"""2^64 over the golden ratio, as an int64."""
_COUNTERS = 16
_GROUP = 4 * _COUNTERS


def standard_normal(seed: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Compute the float32 standard normal xi of a seed. It is the same function on every device and backend.

    The generator is Philox4x32 with 7 rounds and the seed as key. Each counter gives four words, and Box-Muller turns
    them into four normals. Element ``64 g + 16 l + j`` of the flat tensor is normal l of counter ``16 g + j``.

    Args:
        seed: int64, one element, such as the result of :func:`draw_seed`.
        shape: the shape of xi.

    >>> standard_normal(torch.tensor(7), (3,))
    tensor([-1.1164, -0.1735, -0.3903])
    """
    elements = math.prod(shape)
    groups = -(-elements // _GROUP)
    counter = torch.arange(groups * _COUNTERS, dtype=torch.int64, device=seed.device)
    zero = torch.zeros_like(seed.reshape(()))
    normals = torch.stack(_four_normals(seed, counter & _MASK, counter >> 32, zero, zero))
    return normals.reshape(4, groups, _COUNTERS).transpose(0, 1).reshape(-1)[:elements].reshape(shape)


def recurrent_normal(
    seed: Tensor, steps: Tensor, rows: Tensor, count: int, hidden: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Compute the xi of a recurrent layer: nonlinearity n uses normal n % 4 of counter (unit, row, step, n // 4).

    Args:
        seed: int64, one element.
        steps: [R], the time step of each row of the layer's output.
        rows: [R], the batch index of each row.
        count: the number of nonlinearities in a cell.
        hidden: the number of units.
        dtype: float32 or float64; the counter's words are the same, and Box-Muller is computed in this dtype.

    Returns: [R, count, hidden].

    >>> recurrent_normal(torch.tensor(7), torch.tensor([0, 1]), torch.tensor([0, 0]), count=5, hidden=3).shape
    torch.Size([2, 5, 3])
    """
    normals = []
    for block in range(-(-count // 4)):
        normals += _four_normals(seed, *_counters(steps, rows, hidden, block), dtype)
    return torch.stack(normals[:count], dim=1)


def recurrent_mask(
    seed: Tensor, steps: Tensor, rows: Tensor, units: int, rate: float, block: int, word: int = 0
) -> Tensor:
    """Choose units of a recurrent layer with a probability: those whose word is below :func:`threshold`.

    Args:
        seed, steps, rows: as in :func:`recurrent_normal`.
        units: the number of units.
        rate: the probability.
        block: the last word of the counter (unit, row, step, block); the noise has blocks 0 and 1.
        word: which of the counter's four words.

    Returns: [R, units], bool.

    >>> recurrent_mask(torch.tensor(7), torch.tensor([0, 1]), torch.tensor([0, 0]), units=5, rate=0.3, block=2)
    tensor([[ True, False,  True,  True, False],
            [ True, False,  True,  True,  True]])
    """
    words = _philox(seed, *_counters(steps, rows, units, block))[word]
    return words < threshold(rate)


def threshold(rate: float) -> int:
    """The number of 32-bit words, 2^32 in all, that choose a unit with the given probability.

    >>> threshold(0.0), threshold(0.5), threshold(1 - 1e-12)
    (0, 2147483648, 4294967295)
    """
    return min(round(rate * 2**32), _MASK)


def recurrent_positions(
    sizes: Sequence[int], device: torch.device, first_step: int = 0, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The step and the batch index of each row of a recurrent layer's output: `steps` and `rows` of its noise.

    Args:
        sizes: the number of rows at each step.
        first_step: the position of the first step.
        rows: the position of each sequence of the batch; None for 0, 1, 2, ...

    >>> recurrent_positions([2, 1], torch.device("cpu"), first_step=5)
    (tensor([5, 5, 6]), tensor([0, 1, 0]))
    """
    steps = torch.cat([torch.full((size,), first_step + t, device=device) for t, size in enumerate(sizes)])
    rows = torch.arange(sizes[0], device=device) if rows is None else rows
    return steps, torch.cat([rows[:size] for size in sizes])


def _counters(steps: Tensor, rows: Tensor, units: int, block: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words of the counter of each row and unit."""
    unit = torch.arange(units, dtype=torch.int64, device=rows.device).expand(len(rows), units)
    row, step = (place.to(torch.int64)[:, None].expand(len(rows), units) for place in (rows, steps))
    return unit, row, step, torch.full_like(unit, block)


def _four_normals(
    seed: Tensor, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """The four normals of each counter, by Box-Muller."""
    w0, w1, w2, w3 = _philox(seed, c0, c1, c2, c3)
    return [*_normal_pair(w0, w1, dtype), *_normal_pair(w2, w3, dtype)]


def _philox(seed: Tensor, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four 32-bit words of each counter, by Philox4x32 with 7 rounds."""
    seed = seed.reshape(())
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(_ROUNDS):
        # The 64-bit products may overflow, which leaves the needed bits intact. c1 and c3 hold whole products; only
        # their low halves are used, and masks select them below.
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((b >> 32) ^ (c1 ^ k0)) & _MASK, b, ((a >> 32) ^ (c3 ^ k1)) & _MASK, a
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1 & _MASK, c2, c3 & _MASK


def _normal_pair(w0: Tensor, w1: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Box-Muller: the radius from 31 bits, never exactly 0; the angle from 32 bits as a signed fraction of 2 pi."""
    u = ((w0 >> 1).to(dtype) + 0.5) * 2.0**-31
    turn = ((w1 ^ 0x80000000) - 0x80000000).to(dtype) * 2.0**-32
    radius, angle = torch.sqrt(-2.0 * torch.log(u)), (2.0 * math.pi) * turn
    return radius * torch.cos(angle), radius * torch.sin(angle)


def layer_seeds(seed: Tensor, count: int) -> Sequence[Tensor]:
    """The seeds of several layers and directions from one: ``seed + i * 0x9E3779B97F4A7C15`` modulo 2^64.

    >>> layer_seeds(torch.tensor(7), 2)
    (tensor(7), tensor(-7046029254386353124))
    """
    if count == 1:
        return [seed]
    return (torch.arange(count, device=seed.device) * _GOLDEN + seed.reshape(())).unbind()


def draw_seeds(device: torch.device, count: int) -> Sequence[Tensor]:
    """Draw several seeds like :func:`draw_seed`, in a single draw if torch.compile is not tracing.

    >>> len(draw_seeds(torch.device("cpu"), 3))
    3
    """
    if torch.compiler.is_compiling() or count < 2:
        return [draw_seed(device) for _ in range(count)]
    return draw_seed(device, shape=(count,)).unbind()


def draw_seed(device: torch.device, generator: torch.Generator | None = None, shape: tuple[int, ...] = ()) -> Tensor:
    """Draw a seed, an int64 scalar on the device, from the generator or from the device's default generator.

    The processes of a distributed job get different noise even if all use the same torch seed. In a checkpointed
    region the recomputation gets the seeds of the first pass, whether or not torch restores its generators.
    """
    if torch.compiler.is_compiling():
        if generator is None and torch.is_grad_enabled() and _may_recompute_draws():
            if _in_checkpointed_region() or _in_transform():
                raise RuntimeError(
                    "noise in a compiled function needs activation_memory_budget = 1 where a checkpointed region runs "
                    "the function or torch.func transforms it: the compiler would draw different noise in backward"
                )
            return _compiled_stream.next(device)
        seed = _random_seed(device, generator, shape)
        return _draw_at_run_time(seed) if _in_checkpointed_region() else _rank_seed(seed)
    checkpointed = _checkpointed_pass()
    if checkpointed is not None:
        return checkpointed.seed(lambda: _fresh_seed(device, generator, shape), of_torch=generator is None)
    blocks = _region.blocks
    if blocks is not None and generator is None and shape == () and not _in_transform():
        return blocks.next(device)
    return _fresh_seed(device, generator, shape)


def _checkpointed_pass() -> activation_checkpointing.CheckpointedPass | None:
    """The pass over checkpointed regions that the caller is part of; None outside any region."""
    # In every such pass one of these conditions fails. Only then is it worth inspecting the call stack.
    regions = activation_checkpointing
    if regions.graph_task() == -1 and regions.saved_tensor_hooks(True) is None and torch.is_grad_enabled():
        return None
    return regions.current_pass()


def _fresh_seed(device: torch.device, generator: torch.Generator | None, shape: tuple[int, ...]) -> Tensor:
    """Draw seeds that differ between the processes of a distributed job."""
    return _rank_seed(_random_seed(device, generator, shape))


def seeds_in_blocks(on: bool = True) -> contextlib.AbstractContextManager[Any]:
    """Context manager that draws the seeds of noisy calls in blocks of 64. Unused seeds of a block are dropped.

    A loop of small noisy calls draws one seed per call, and on a GPU a draw takes as long as a small kernel. The noise
    differs from the noise without this context manager. Enter it inside a step that is recorded as a CUDA graph: a
    block drawn before the recording would be reused by every replay. Calls with a generator, checkpointed regions and
    torch.func transforms draw their seeds one by one.

    Args:
        on: if False, the context manager does nothing.

    >>> with seeds_in_blocks():
    ...     first, second = (draw_seed(torch.device("cpu")) for _ in range(2))
    >>> torch.equal(first, second)
    False
    """
    return _Blocks() if on else contextlib.nullcontext()


class _Blocks:
    _SIZE = 64

    def __init__(self) -> None:
        self._left: dict[torch.device, Iterator[Tensor]] = {}

    def __enter__(self) -> None:
        self._before, _region.blocks = _region.blocks, self

    def __exit__(self, *_: object) -> None:
        _region.blocks = self._before

    def next(self, device: torch.device) -> Tensor:
        seed = next(self._left.get(device, iter(())), None)
        if seed is None:
            # Use every second number: Triton recompiles a kernel for an address that is not a multiple of 16.
            self._left[device] = iter(_fresh_seed(device, None, (self._SIZE, 2))[:, 0].unbind())
            seed = next(self._left[device])
        return seed


class _Region(threading.local):
    """The innermost :func:`seeds_in_blocks` region of each thread."""

    blocks: _Blocks | None = None


_region = _Region()


def _random_seed(device: torch.device, generator: torch.Generator | None, shape: tuple[int, ...]) -> Tensor:
    if generator is None:
        return torch.randint(2**63 - 1, shape, dtype=torch.int64, device=device)
    return torch.randint(2**63 - 1, shape, dtype=torch.int64, device=generator.device, generator=generator).to(device)


def _rank_seed(seed: Tensor) -> Tensor:
    rank = _rank()
    return seed if rank == 0 else seed ^ (rank * 0x9E3779B97F4A7C15 & (2**63 - 1))


@constant
def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return 0


@constant
def _in_checkpointed_region() -> bool:
    """Whether a graph is traced inside a checkpointed region, which will run the graph twice."""
    return _checkpointed_pass() is not None


@constant
def _in_transform() -> bool:
    return torch._C._are_functorch_transforms_active()


@torch.library.custom_op("noisyact::draw_seed", mutates_args=())
def _draw_at_run_time(place: Tensor) -> Tensor:
    """Draw a seed as in eager mode. `place` gives the device; its random value keeps draws from being merged."""
    return draw_seed(place.device)


@_draw_at_run_time.register_fake
def _(place: Tensor) -> Tensor:
    return torch.empty_like(place)


@constant
def _may_recompute_draws() -> bool:
    """Whether the compiler may repeat a random draw in backward. Called while a graph is traced.

    With an activation memory budget below 1 the compiler repeats draws, gets other numbers and returns a silently wrong
    gradient. The seeds must then be functions of the graph's inputs. If torch lacks one of the settings, assume yes.
    """
    of_region = get_current_meta().get("custom", {}).get("_region_activation_memory_budget", 1.0)
    recomputes = (
        min(getattr(_partitioner, "activation_memory_budget", 0.0), of_region) < 1.0
        or getattr(_partitioner, "aggressive_recomputation", True)
        or not getattr(_partitioner, "ban_recompute_not_in_allowlist", False)
    )
    if recomputes:
        _compiled_stream.start()
    return recomputes


class _CompiledStream:
    """Seeds for graphs that may repeat their draws: each is computed from a state that is an input of the graph.

    The attribute is rebound to a new tensor and never changed in place, so a graph that saved the old tensor can reuse
    it. The stream starts from torch's seed at the first such compilation. Later calls of torch.manual_seed do not
    reset it.
    """

    def __init__(self) -> None:
        self.state = torch.zeros((), dtype=torch.int64, device="cpu")
        self._started = False

    def start(self) -> None:
        """Initialise the state from torch's seed, at the first call only."""
        if not self._started:
            self.state = torch.full((), torch.initial_seed() & (2**62 - 1), dtype=torch.int64, device="cpu")
            self._started = True

    def next(self, device: torch.device) -> Tensor:
        """The next seed, by a 64-bit linear congruential generator. Philox, which uses it as key, does the mixing."""
        self.state = self.state * 6364136223846793005 + 1442695040888963407
        return _rank_seed(self.state.to(device))


_compiled_stream = _CompiledStream()

"""Where the noise comes from: a seed is drawn once a call, and every xi is a function of that seed and its place.

The differentiable ops take the seed as an argument and never draw inside, so that whatever recomputes them (backward,
activation checkpointing, a compiled graph) sees the noise of the forward pass again.
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
except ImportError:  # torch promises neither the module nor its settings
    _partitioner = None

__all__ = ["draw_seed", "draw_seeds", "recurrent_normal", "seeds_in_blocks", "standard_normal"]

_MASK = 0xFFFFFFFF
_ROUNDS = 7
_COUNTERS = 16
_GROUP = 4 * _COUNTERS


def standard_normal(seed: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """The standard normal xi that a seed stands for, float32, the same on every device and backend.

    Philox4x32 with 7 rounds, the seed as key. Counter k gives four words, two Box-Muller pairs, four normals; of the
    flat tensor, element ``64 g + 16 l + j`` is normal l of counter ``16 g + j``.

    Args:
        seed: int64, one element, as :func:`draw_seed` gives.
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


def recurrent_normal(seed: Tensor, steps: Tensor, rows: Tensor, count: int, hidden: int) -> Tensor:
    """The xi of a recurrent layer: nonlinearity n of a unit takes normal n % 4 of counter (unit, row, step, n // 4).

    Args:
        seed: int64, one element.
        steps: [R], the time step of each row of the layer's output.
        rows: [R], its place in the batch.
        count: nonlinearities of a cell.
        hidden: units.

    Returns: [R, count, hidden], float32.

    >>> recurrent_normal(torch.tensor(7), torch.tensor([0, 1]), torch.tensor([0, 0]), count=5, hidden=3).shape
    torch.Size([2, 5, 3])
    """
    unit = torch.arange(hidden, dtype=torch.int64, device=seed.device).expand(len(rows), hidden)
    row, step = (place.to(torch.int64)[:, None].expand(len(rows), hidden) for place in (rows, steps))
    normals = []
    for block in range(-(-count // 4)):
        normals += _four_normals(seed, unit, row, step, torch.full_like(unit, block))
    return torch.stack(normals[:count], dim=1)


def _four_normals(seed: Tensor, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> list[Tensor]:
    """Philox4x32, 7 rounds, and Box-Muller: the four normals of each counter."""
    seed = seed.reshape(())
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(_ROUNDS):
        # The 64-bit products may wrap, the bits stay right. c1 and c3 keep whole products: only their low halves are
        # used, and those are cut out where they are.
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((b >> 32) ^ (c1 ^ k0)) & _MASK, b, ((a >> 32) ^ (c3 ^ k1)) & _MASK, a
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return [*_normal_pair(c0, c1 & _MASK), *_normal_pair(c2, c3 & _MASK)]


def _normal_pair(w0: Tensor, w1: Tensor) -> tuple[Tensor, Tensor]:
    """Box-Muller: the radius from 31 bits, never 0; the angle from 32 bits read as a signed part of a turn."""
    u = ((w0 >> 1).to(torch.float32) + 0.5) * 2.0**-31
    turn = ((w1 ^ 0x80000000) - 0x80000000).to(torch.float32) * 2.0**-32
    radius, angle = torch.sqrt(-2.0 * torch.log(u)), (2.0 * math.pi) * turn
    return radius * torch.cos(angle), radius * torch.sin(angle)


def draw_seeds(device: torch.device, count: int) -> Sequence[Tensor]:
    """Several fresh seeds, each as :func:`draw_seed` gives one, at the price of one where that is possible.

    >>> len(draw_seeds(torch.device("cpu"), 3))
    3
    """
    if torch.compiler.is_compiling() or count < 2:
        return [draw_seed(device) for _ in range(count)]
    return draw_seed(device, shape=(count,)).unbind()


def draw_seed(device: torch.device, generator: torch.Generator | None = None, shape: tuple[int, ...] = ()) -> Tensor:
    """A fresh seed: an int64 scalar on the device, from the generator or the device's default one.

    Processes of a distributed job get different noise even when all of them were seeded alike. Inside a checkpointed
    region the recomputation gets the seeds of the first pass, whether or not torch restores its generators.
    """
    if torch.compiler.is_compiling():
        if generator is None and torch.is_grad_enabled() and _may_recompute_draws():
            if _in_checkpointed_region() or _in_transform():
                raise RuntimeError(
                    "noise in a compiled function needs activation_memory_budget = 1 where a checkpointed region runs "
                    "the function or torch.func transforms it: the compiler would draw other noise in backward"
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
    # Every such pass shows one of these. Only then is the call stack worth a look.
    regions = activation_checkpointing
    if regions.graph_task() == -1 and regions.saved_tensor_hooks(True) is None and torch.is_grad_enabled():
        return None
    return regions.current_pass()


def _fresh_seed(device: torch.device, generator: torch.Generator | None, shape: tuple[int, ...]) -> Tensor:
    """Seeds from the generator that differ between the processes of a distributed job."""
    return _rank_seed(_random_seed(device, generator, shape))


def seeds_in_blocks(on: bool = True) -> contextlib.AbstractContextManager[Any]:
    """Draw the seeds of the calls within it many at a time; what is left of a block at its end is dropped.

    A loop of small noisy calls draws a seed at each of them, and on a GPU a draw takes as long as a small kernel. The
    noise differs from that without it. Enter it inside a step that is recorded as a CUDA graph: a block drawn before
    the recording would be the same at each replay. Calls with a generator, regions of activation checkpointing and
    transforms of torch.func draw their seeds one by one.

    Args:
        on: False for a context manager that does nothing.

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
            # Every second number: Triton compiles a kernel again for an address that is no multiple of 16.
            self._left[device] = iter(_fresh_seed(device, None, (self._SIZE, 2))[:, 0].unbind())
            seed = next(self._left[device])
        return seed


class _Region(threading.local):
    """This thread's innermost region of :func:`seeds_in_blocks`."""

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
    """Whether a graph is traced while a checkpointed region runs: the region will run the graph twice."""
    return _checkpointed_pass() is not None


@constant
def _in_transform() -> bool:
    return torch._C._are_functorch_transforms_active()


@torch.library.custom_op("noisyact::draw_seed", mutates_args=())
def _draw_at_run_time(place: Tensor) -> Tensor:
    """A seed drawn as outside a graph. `place` has the device; being random, it keeps two draws from being merged."""
    return draw_seed(place.device)


@_draw_at_run_time.register_fake
def _(place: Tensor) -> Tensor:
    return torch.empty_like(place)


@constant
def _may_recompute_draws() -> bool:
    """Whether the compiler may run a random draw again in backward. Runs while a graph is traced.

    With an activation memory budget below 1 it does, and gets other numbers: a gradient that is silently wrong. The
    seeds must then be functions of the graph's inputs. Where torch no longer has a setting, a draw may run again.
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
    """Seeds for graphs that may recompute their draws: each is computed from a state that is an input of the graph.

    The attribute is bound to a new tensor, never changed in place, so a graph that saved the old one can use it again.
    The stream starts from torch's seed at the first such compilation and runs on; torch.manual_seed later on does not
    set it back.
    """

    def __init__(self) -> None:
        self.state = torch.zeros((), dtype=torch.int64)
        self._started = False

    def start(self) -> None:
        """Take torch's seed, once."""
        if not self._started:
            self.state = torch.full((), torch.initial_seed() & (2**62 - 1), dtype=torch.int64)
            self._started = True

    def next(self, device: torch.device) -> Tensor:
        """The next seed: a step of a 64-bit linear congruential generator; Philox, keyed by it, does the mixing."""
        self.state = self.state * 6364136223846793005 + 1442695040888963407
        return _rank_seed(self.state.to(device))


_compiled_stream = _CompiledStream()

"""One run on several devices: a process for each, started by torchrun and connected by Lightning Fabric.

Every process has the whole model and takes its share of each batch. The gradients are averaged over the processes, so
an update is that of the whole batch. All processes draw the same batches and different noise. The first one writes the
run's files.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from noisyact.extras import how_to_install
from noisyact_lab.engine.experiment import Experiment
from noisyact_lab.engine.task import SINGLE_PROCESS, ProcessGroup, Task

__all__ = ["ProcessFailed", "check_spreading", "join", "launch", "started_by_torchrun"]

_T = TypeVar("_T")
_TORCHRUN_LOGGER = "torch.distributed.elastic"


def check_spreading(experiment: Experiment, task: Task | None = None) -> None:
    """Raise a ValueError for an experiment whose tasks cannot be spread, as far as that can be seen without one."""
    kind = experiment.start if task is None else type(task)
    if isinstance(kind, type) and issubclass(kind, Task) and not kind.spreads:
        raise ValueError(f"{experiment.name} runs on one device only: its task cannot share out its batches")


class _FabricProcesses(ProcessGroup):
    """Several processes."""

    def __init__(self, fabric: Any) -> None:
        self._fabric = fabric
        self.rank, self.size, self.device = fabric.global_rank, fabric.world_size, fabric.device

    def averaged(self, module: nn.Module) -> nn.Module:
        return self._fabric.setup_module(module)

    def backward(self, loss: Tensor) -> None:
        self._fabric.backward(loss)

    def share(self, batch: Tensor, dim: int = 0) -> Tensor:
        if batch.shape[dim] % self.size:
            raise ValueError(f"a batch of {batch.shape[dim]} cannot be shared out evenly to {self.size} devices")
        part = batch.shape[dim] // self.size
        return batch.narrow(dim, self.rank * part, part)

    def all_gather(self, share: Tensor, dim: int = 0) -> Tensor:
        share = share.contiguous()
        parts = [torch.empty_like(share) for _ in range(self.size)]
        torch.distributed.all_gather(parts, share)  # Fabric's calls a function that torch deprecates
        return torch.cat(parts, dim)

    def mean(self, number: Tensor) -> Tensor:
        return self._fabric.all_reduce(number.clone(), reduce_op="mean")

    def on_first(self, compute: Callable[[], _T]) -> _T:
        made, error = None, None
        if self.is_first:
            try:
                made = tree_map_only(Tensor, lambda tensor: tensor.cpu(), compute())
            except (OSError, ValueError) as raised:  # else the others would only see a lost connection
                error = raised
        made, error = self._fabric.broadcast((made, error))
        if error is not None:
            raise error
        return made  # pyright: ignore[reportReturnType]

    def reseed(self, seed: int, update: int) -> None:
        if not self.is_first:
            torch.manual_seed(((seed + 1) * 1_000_003 + update) * 1_000_003 + self.rank)


def started_by_torchrun() -> bool:
    """Whether this process is one of several that torchrun started."""
    return torch.distributed.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1


def join(device: torch.device, devices: int | None = None, num_nodes: int | None = None) -> ProcessGroup:
    """The processes that torchrun started with this one; a single process if it did not start this one.

    Args:
        device: all processes have a device of this type.
        devices: how many there should be on each machine; an error unless torchrun has started as many.
        num_nodes: how many machines there should be, likewise.
    """
    if not started_by_torchrun():
        return SINGLE_PROCESS
    size, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    for flag, asked, there in (("--devices", devices, here), ("--num-nodes", num_nodes, size // here)):
        if asked is not None and asked != there:
            raise ValueError(f"{flag} {asked}: torchrun started {size} processes, {here} of them on this machine")
    if device.type == "cuda" and torch.cuda.device_count() < here:
        raise ValueError(f"--devices {here}: there are {torch.cuda.device_count()} GPUs here")
    fabric = _fabric()(accelerator=device.type, devices=here, num_nodes=size // here, strategy="ddp")
    fabric.launch()
    # Ctrl-C reaches all processes: they end as if killed, and the process that started them reports it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _FabricProcesses(fabric)


def _fabric() -> Any:
    try:
        from lightning.fabric import Fabric
    except ImportError as error:
        raise ValueError(f"several devices need Lightning: {how_to_install('lightning')}") from error
    for name in ("lightning.fabric", "lightning.pytorch"):  # else they report that all processes have started
        logging.getLogger(name).setLevel(logging.WARNING)
    return Fabric


class ProcessFailed(RuntimeError):
    """One of the processes failed, and the others were ended; `code` is its exit code."""

    def __init__(self, rank: int, size: int, code: int) -> None:
        super().__init__(
            f"process {rank} of {size} (counted from 0) failed with exit code {code}; all were ended. What is done is "
            "kept: the same command resumes from there"
        )
        self.code = code


def launch(devices: int, num_nodes: int, arguments: Sequence[str]) -> None:
    """Run this command in a process for each device of this machine, and wait for all; one that fails ends all.

    With several machines, give the same command on each, with the environment variables NODE_RANK (0, 1, ...), and
    MASTER_ADDR and MASTER_PORT of the machine with rank 0.

    Args:
        devices: how many of this machine.
        num_nodes: how many machines.
        arguments: those of the command ``noisyact``.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    where = ["--standalone"]
    if num_nodes > 1:
        missing = [name for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise ValueError(f"--num-nodes {num_nodes} needs the environment variables {', '.join(missing)}")
        rank, address, port = (os.environ[name] for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT"))
        where = [f"--nnodes={num_nodes}", f"--node-rank={rank}", f"--master-addr={address}", f"--master-port={port}"]
    logging.getLogger(_TORCHRUN_LOGGER).setLevel(logging.CRITICAL)  # what it reports is reported below, in one line
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // devices)))
    command = [*where, f"--nproc-per-node={devices}", "-m", "noisyact_lab", *arguments]
    try:
        torchrun.run(torchrun.parse_args(command))
    except SignalException as stopped:
        raise _ended_by(stopped.sigval) from None
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode == -signal.SIGINT:  # Ctrl-C came to the processes first
            raise KeyboardInterrupt from None
        raise ProcessFailed(rank, devices * num_nodes, failure.exitcode) from None


def _ended_by(number: signal.Signals) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)

"""Many runs at once on a Ray cluster.

The runs are kept in the folders of this machine, and need no disk that all machines share: a worker is sent what there
is of a run, does it in a folder of its own, and sends back what has changed whenever the run is saved. So a run whose
worker is lost goes on from its last checkpoint on another, and a grid that is stopped goes on when it is run again,
here or on a cluster. One thread each, as on one machine: the same jobs give the same bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from noisyact_lab.data.locate import VARIABLE
from noisyact_lab.engine.experiment import UnknownName
from noisyact_lab.engine.folder.files import alone_in
from noisyact_lab.engine.folder.sync import Changes, apply, contents
from noisyact_lab.engine.logging.run_log import Logs
from noisyact_lab.engine.parallel.processes import Event, Job, Outcome, Watch, check_folders, in_a_line
from noisyact_lab.engine.ray.cluster import check_installed, check_versions, connected, versions
from noisyact_lab.engine.ray.worker import Worker
from noisyact_lab.engine.run import DEVICES, clear

__all__ = ["run_all"]

_LOSSES = 3
"""How often in a row, without an evaluation between, a run may lose its worker."""
_PATIENCE = 30.0
"""Seconds after which a cluster that starts no worker is spoken of."""


def run_all(
    jobs: Sequence[Job], at_once: int | None = None, watch: Watch | None = None, *, address: str | None = None
) -> list[Outcome]:
    """Do all jobs; `watch` is called in this process with all that the runs say.

    Args:
        jobs: their folders are on this machine.
        at_once: at most so many; default: as many as the cluster has CPUs, or GPUs, free.
        watch: see :data:`noisyact_lab.engine.parallel.processes.Watch`.
        address: of the cluster, HOST:PORT or ray://HOST:PORT. Default: what RAY_ADDRESS says, else a cluster that runs
            on this machine, else one is started here until the jobs are done.

    Returns: how each ended, in the order of the jobs.
    """
    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once={at_once}: must be at least 1")
    check_folders(jobs)
    for job in jobs:
        if job.device not in DEVICES:
            raise UnknownName("device", job.device, DEVICES)
    check_installed()
    with connected(address) as cluster:
        return _Grid(cluster, jobs, at_once or len(jobs), watch or (lambda job, event: None)).outcomes()


class _Run:
    """A job, as this machine has it."""

    def __init__(self, index: int, job: Job, watch: Watch) -> None:
        self.index, self.job, self._watch = index, job, watch
        self.done, self.losses, self._begun = 0, 0, False
        self._held = contextlib.ExitStack()
        self._logs = Logs(job.log, job.folder, self.warn)

    def begin(self, device: str) -> tuple[Job, Mapping[str, bytes]]:
        """What a worker is sent; until the run leaves it, nobody else may be at work in the folder."""
        self._held.enter_context(alone_in(self.job.folder))
        if self.job.force and not self._begun:
            clear(self.job.folder)
        self._begun = True
        return dataclasses.replace(self.job, device=device, force=False, log=()), contents(self.job.folder)

    def hear(self, event: Event, changes: Changes) -> None:
        """Something its worker says."""
        apply(self.job.folder, changes)
        if event.kind == "progress":
            if event.done > self.done:
                self.done, self.losses = event.done, 0
            self._logs.follow()
        if event.kind in ("progress", "warning"):
            self._watch(self.job, event)

    def lost(self) -> None:
        """Its worker is."""
        self.losses += 1
        self._held.close()

    def end(self, event: Event) -> Outcome:
        """It has."""
        self.leave(event.record)
        self._watch(self.job, event)
        return Outcome(self.job, event.record, event.text)

    def leave(self, record: Mapping[str, Any] | None = None) -> None:
        """Nothing more will be done of it here."""
        self._logs.end(record)
        self._held.close()

    def warn(self, text: str) -> None:
        """Tell the reader."""
        self._watch(self.job, Event("warning", text=text))


@dataclasses.dataclass(eq=False)
class _Worker:
    """A process of the cluster, and what it is at: nothing, while it starts."""

    actor: Any
    run: _Run | None = None


class _Grid:
    """All the jobs; every worker has one call to it that it has not answered."""

    def __init__(self, ray: Any, jobs: Sequence[Job], at_once: int, watch: Watch) -> None:
        self._ray, self._at_once = ray, at_once
        self._runs = [_Run(index, job, watch) for index, job in enumerate(jobs)]
        self._waiting = self._runs[::-1]
        self._outcomes: dict[int, Outcome] = {}
        self._workers: list[_Worker] = []
        self._calls: dict[Any, _Worker] = {}
        self._device = _device(jobs, ray.cluster_resources())
        self._versions, self._stillborn = versions(), 0
        gpus = 1 if self._device == "cuda" else 0
        self._kind = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_concurrency=2)(Worker)

    def outcomes(self) -> list[Outcome]:
        """Do them."""
        try:
            while len(self._outcomes) < len(self._runs):
                self._staff()
                answered, _ = self._ray.wait(list(self._calls), timeout=_PATIENCE)
                if not answered and all(worker.run is None for worker in self._calls.values()):
                    self._complain()
                for call in answered:
                    self._hear(self._calls.pop(call), call)
            return [self._outcomes[run.index] for run in self._runs]
        finally:
            # Also after Ctrl-C, in the middle of runs: what they have saved is here.
            for worker in list(self._workers):
                self._dismiss(worker)
            for run in self._runs:
                if run.index not in self._outcomes:
                    run.leave()

    def _staff(self) -> None:
        """As many workers as there is work for; Ray starts them when and where there is room."""
        starting = [(call, worker) for call, worker in self._calls.items() if worker.run is None]
        wanted = min(self._at_once, len(self._calls) - len(starting) + len(self._waiting))
        for call, worker in starting[: max(0, len(self._calls) - wanted)]:
            del self._calls[call]
            self._dismiss(worker)
        while len(self._calls) < wanted:
            data = os.environ.get(VARIABLE)
            worker = _Worker(self._kind.remote(data and str(Path(data).absolute())))
            self._workers.append(worker)
            self._calls[worker.actor.about.remote()] = worker

    def _dismiss(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._ray.kill(worker.actor)

    def _hear(self, worker: _Worker, call: Any) -> None:
        try:
            said = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            self._dismiss(worker)  # it may be out of reach alone
            self._lose(worker.run, error)
            return
        if worker.run is None:
            host, there = said
            check_versions(host, there, self._versions)
            self._stillborn = 0
            self._take(worker)
            return
        for event, changes in said:
            try:
                worker.run.hear(event, changes)
            except OSError as error:
                self._dismiss(worker)
                self._end(worker.run, Event("failed", text=in_a_line(error)))
                return
            if event.kind in ("ended", "failed"):
                self._end(worker.run, event)
                self._take(worker)
                return
        self._calls[worker.actor.hear.remote()] = worker

    def _take(self, worker: _Worker) -> None:
        """Give it the next run; if there is none it goes."""
        while self._waiting:
            worker.run = self._waiting.pop()
            try:
                sent = worker.run.begin(self._device)
            except (OSError, ValueError) as error:
                self._end(worker.run, Event("failed", text=in_a_line(error)))
                continue
            worker.actor.do.remote(*sent)
            self._calls[worker.actor.hear.remote()] = worker
            return
        self._dismiss(worker)

    def _end(self, run: _Run, event: Event) -> None:
        self._outcomes[run.index] = run.end(event)

    def _lose(self, run: _Run | None, error: Exception) -> None:
        if run is None:
            self._stillborn += 1
            if self._stillborn > _LOSSES:
                raise ValueError(f"the Ray cluster cannot start a worker: {str(error).strip().splitlines()[-1]}")
            return
        run.lost()
        if run.losses > _LOSSES:
            self._end(run, Event("failed", text=f"its worker was lost {run.losses} times: {in_a_line(error)}"))
            return
        run.warn(f"its worker was lost ({type(error).__name__}); it goes on from update {run.done}")
        self._waiting.append(run)

    def _complain(self) -> None:
        there, free = self._ray.cluster_resources(), self._ray.available_resources()
        counts = ", ".join(f"{free.get(name, 0):g} of {there.get(name, 0):g} {name}s" for name in ("CPU", "GPU"))
        needs = "a CPU and a GPU" if self._device == "cuda" else "a CPU"
        self._waiting[-1].warn(f"no worker has started for {_PATIENCE:.0f} s; one needs {needs}, and free are {counts}")


def _device(jobs: Sequence[Job], resources: Mapping[str, float]) -> str:
    """The device of all jobs: where there are GPUs in the cluster, "auto" is one."""
    auto = "cuda" if resources.get("GPU") else "cpu"
    chosen = {auto if job.device == "auto" else job.device for job in jobs} or {auto}
    if len(chosen) > 1:
        raise ValueError("jobs for a Ray cluster must be for one kind of device; these are for cpu and cuda")
    return chosen.pop()

"""Many runs at once on a Ray cluster.

The runs' folders are on this machine; no shared disk is needed. A worker is sent the files of a run, does it in a
temporary folder, and sends back what has changed whenever the run is saved. A run whose worker is lost resumes on
another from its last checkpoint, and jobs that are stopped resume when they are run again, here or on a cluster. Each
run has one thread, as on one machine, so the same jobs give bit-identical files.
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
from noisyact_lab.engine.folder.files import locked
from noisyact_lab.engine.folder.records import clear
from noisyact_lab.engine.job import DEVICES, Job
from noisyact_lab.engine.logging.run_log import Logs
from noisyact_lab.engine.parallel.events import Event, Outcome, Watch, check_folders, in_a_line
from noisyact_lab.engine.ray.cluster import check_installed, check_versions, connected, versions
from noisyact_lab.engine.ray.sync import Changes, apply, contents
from noisyact_lab.engine.ray.worker import Worker

__all__ = ["run_all"]

_LOSSES = 3
"""How often a run may lose its worker between two evaluations."""
_PATIENCE = 30.0
"""Seconds without a worker after which a warning is given."""


def run_all(
    jobs: Sequence[Job], at_once: int | None = None, watch: Watch | None = None, *, address: str | None = None
) -> list[Outcome]:
    """Do all jobs.

    Args:
        jobs: their folders are on this machine.
        at_once: the most runs at a time; default: as many as the cluster has CPUs, or GPUs, free.
        watch: see :data:`noisyact_lab.engine.parallel.events.Watch`.
        address: the cluster's, HOST:PORT or ray://HOST:PORT. Default: RAY_ADDRESS, else a cluster that runs on this
            machine, else one is started here until the jobs are done.

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
        return _Jobs(cluster, jobs, at_once or len(jobs), watch or (lambda job, event: None)).outcomes()


class _Run:
    """A job and its folder on this machine."""

    def __init__(self, index: int, job: Job, watch: Watch) -> None:
        self.index, self.job, self._watch = index, job, watch
        self.done, self.losses, self._begun = 0, 0, False
        self._held = contextlib.ExitStack()
        self._logs = Logs(job.log, job.folder, self.warn)

    def begin(self, device: str) -> tuple[Job, Mapping[str, bytes]]:
        """Lock the folder until the run ends or its worker is lost. Returns: what a worker is sent."""
        self._held.enter_context(locked(self.job.folder))
        if self.job.force and not self._begun:
            clear(self.job.folder)
        self._begun = True
        return dataclasses.replace(self.job, device=device, force=False, log=()), contents(self.job.folder)

    def hear(self, event: Event, changes: Changes) -> None:
        """Called with an event of the worker, and the changes that came with it."""
        apply(self.job.folder, changes)
        if event.kind == "progress":
            if event.done > self.done:
                self.done, self.losses = event.done, 0
            self._logs.follow()
        if event.kind in ("progress", "warning"):
            self._watch(self.job, event)

    def lost(self) -> None:
        """Called when the worker is lost."""
        self.losses += 1
        self._held.close()

    def end(self, event: Event) -> Outcome:
        """Called when the run has ended or failed."""
        self.leave(event.record)
        self._watch(self.job, event)
        return Outcome(self.job, event.record, event.text)

    def leave(self, record: Mapping[str, Any] | None = None) -> None:
        """End the loggers and unlock the folder."""
        self._logs.end(record)
        self._held.close()

    def warn(self, text: str) -> None:
        """Pass a warning on to whoever watches."""
        self._watch(self.job, Event("warning", text=text))


@dataclasses.dataclass(eq=False)
class _Worker:
    """A process of the cluster and its run; while the process starts there is none."""

    actor: Any
    run: _Run | None = None


class _Jobs:
    """All jobs and workers; every worker always has one call that it has not answered yet."""

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
        """Do the jobs."""
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
            # Also after Ctrl-C, in the middle of runs: the files that they have saved are here.
            for worker in list(self._workers):
                self._dismiss(worker)
            for run in self._runs:
                if run.index not in self._outcomes:
                    run.leave()

    def _staff(self) -> None:
        """Ask Ray for as many workers as there are jobs for; it starts them when and where there is room."""
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
            self._dismiss(worker)  # it may only be out of reach
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
        """Give the worker the next run, or dismiss it if there is none."""
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
        run.warn(f"its worker was lost ({type(error).__name__}); it resumes from update {run.done}")
        self._waiting.append(run)

    def _complain(self) -> None:
        there, free = self._ray.cluster_resources(), self._ray.available_resources()
        counts = ", ".join(f"{free.get(name, 0):g} of {there.get(name, 0):g} {name}s" for name in ("CPU", "GPU"))
        needs = "a CPU and a GPU" if self._device == "cuda" else "a CPU"
        self._waiting[-1].warn(f"no worker has started for {_PATIENCE:.0f} s; one needs {needs}, and free are {counts}")


def _device(jobs: Sequence[Job], resources: Mapping[str, float]) -> str:
    """The device of all jobs: "auto" is a GPU if the cluster has any."""
    auto = "cuda" if resources.get("GPU") else "cpu"
    chosen = {auto if job.device == "auto" else job.device for job in jobs} or {auto}
    if len(chosen) > 1:
        raise ValueError("jobs for a Ray cluster must be for one kind of device; these are for cpu and cuda")
    return chosen.pop()

"""Many runs at once: all are checked first, and then done in processes, on CUDA streams or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence

from noisyact_lab.engine.experiment import UnknownName
from noisyact_lab.engine.job import Job
from noisyact_lab.engine.parallel import mps, processes, streams
from noisyact_lab.engine.parallel.events import Outcome, Watch
from noisyact_lab.engine.ray import cluster
from noisyact_lab.engine.ray import runs as on_ray

__all__ = ["ENGINES", "run_all"]

ENGINES = ("local", "ray")


def run_all(
    jobs: Sequence[Job], at_once: int | None = None, watch: Watch | None = None, engine: str = "local",
    address: str | None = None,
) -> list[Outcome]:  # fmt: skip
    """Do all jobs. An error in any of them is raised before the first starts; a job that fails ends no other.

    On this machine, jobs on a CPU are processes. Jobs on a GPU are processes where NVIDIA's Multi-Process Service runs,
    and streams of this process elsewhere.

    Args:
        jobs: each with another folder.
        at_once: the most runs at a time. Default: one per CPU core; up to 8 streams, or 16 processes, on a GPU; as many
            as a cluster has cores or GPUs.
        watch: called in this process with every event of every job.
        engine: "local" or "ray".
        address: the Ray cluster's; see :func:`noisyact_lab.engine.ray.runs.run_all`.

    Returns: how each job ended, in the order of the jobs.
    """
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    if engine == "ray":
        cluster.check_installed()
    elif address is not None:
        raise ValueError(f"--address {address}: is for --engine ray")
    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once={at_once}: must be at least 1")
    for job in jobs:
        job.check(elsewhere=engine == "ray")
    if engine == "ray":
        return on_ray.run_all(jobs, at_once, watch, address=address)
    on_gpu = any(job.torch_device.type == "cuda" for job in jobs)
    if on_gpu and mps.serves():
        mps.prepare()
        return processes.run_all(jobs, at_once or min(mps.MOST, _cores()), watch)
    if on_gpu and at_once != 1:
        return streams.run_all(jobs, at_once or streams.MOST, watch)
    return processes.run_all(jobs, at_once or _cores(), watch)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

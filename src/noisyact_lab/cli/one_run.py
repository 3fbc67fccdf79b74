"""One run on several devices from the command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from noisyact_lab.engine.distributed import Team
    from noisyact_lab.engine.parallel.processes import Job

__all__ = ["of_command"]


def of_command(job: Job, devices: int | None, num_nodes: int | None) -> Team:
    """The team this process is in.

    Where several devices are asked for and torchrun has not started this process, the command is started again for each
    of them, and this one ends with them.
    """
    from noisyact_lab.engine import registry
    from noisyact_lab.engine.distributed import ProcessFailed, check_spreading, join, launch, started_by_torchrun
    from noisyact_lab.engine.run import resolve

    if started_by_torchrun() or (devices or 1) * (num_nodes or 1) == 1:
        return join(resolve(job.device), devices, num_nodes)
    check_spreading(registry.load(job.experiment))
    try:
        launch(devices or 1, num_nodes or 1, sys.argv[1:])
    except ProcessFailed as failure:
        print(f"noisyact: {failure}", file=sys.stderr)
        raise typer.Exit(failure.code if failure.code in (1, 2) else 1) from None
    raise typer.Exit

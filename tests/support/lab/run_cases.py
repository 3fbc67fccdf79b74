"""The files of a run, to compare interrupted and uninterrupted runs, or runs in different places."""

from pathlib import Path

import pytest

from noisyact_lab.engine.folder.files import read_lines
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run


def kept(folder: Path) -> dict[str, bytes]:
    """The files that must be identical: without times, code versions and the loggers' files."""
    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in paths.items()
        if name not in ("timing.jsonl", "result.json") and not name.startswith("logs/")
    }


def stopped_ends_as_whole(experiment, arm, out: Path, changes) -> Path:
    """Do a smoke run on a CPU, and again with a stop after each of its first two evaluations; returns the first."""

    def done(name, stop=None):
        def progress(count, total, line):
            if count == stop:
                raise KeyboardInterrupt

        return run(Job(experiment.name, arm, "smoke", 1, out / name, device="cpu", changes=changes), progress=progress)

    right = done("whole")
    whole, parts = (folder_of(out / name, experiment.name, "smoke", arm, 1) for name in ("whole", "parts"))
    evaluated = [line["update"] for line in read_lines(whole / "metrics.jsonl")]
    assert len(evaluated) > 2
    for update in evaluated[:2]:
        with pytest.raises(KeyboardInterrupt):
            done("parts", stop=update)
        assert read_lines(parts / "metrics.jsonl")[-1]["update"] == update
    assert done("parts")["result"] == right["result"]
    assert kept(parts) == kept(whole)
    return whole

"""Many runs from Python: errors in any of them are raised before the first begins."""

import pytest
from run_cases import kept

from noisyact_lab.data.locate import Missing
from noisyact_lab.engine.experiment import UnknownName
from noisyact_lab.engine.job import Job
from noisyact_lab.engine.many_runs import run_all
from noisyact_lab.engine.parallel import streams

TINY = {"updates": 12, "evaluate_every": 2, "test_sequences": 40, "hidden": 4, "batch": 4, "length": 6}


def jobs(out, *seeds, **fields):
    return [Job("unique", "nan", "smoke", seed, out, "cpu", TINY, **fields) for seed in seeds]


def test_all_runs_are_done_and_watched(tmp_path):
    seen = []
    todo = jobs(tmp_path / "processes", 0, 1)
    outcomes = run_all(todo, 2, lambda job, event: seen.append((job.seed, event.kind)))
    assert [outcome.job for outcome in outcomes] == todo
    assert [outcome.record["status"] for outcome in outcomes] == ["finished", "finished"]
    assert {(seed, kind) for seed in (0, 1) for kind in ("progress", "ended")} == set(seen)
    streams.run_all(jobs(tmp_path / "streams", 0))
    assert kept(jobs(tmp_path / "streams", 0)[0].folder) == kept(todo[0].folder)


@pytest.mark.parametrize(
    ("wrong", "options", "error", "message"),
    [
        ({"arm": "nope"}, {}, UnknownName, "arm 'nope'"),
        ({"device": "tpu"}, {}, UnknownName, "device 'tpu'"),
        ({"changes": {"hiden": 3}}, {}, UnknownName, "setting 'hiden'"),
        ({"log": ("sacred",)}, {}, UnknownName, "logger 'sacred'"),
        ({"experiment": "mnist", "arm": "tanh", "changes": {}}, {}, Missing, "data set 'mnist'"),
        ({}, {"engine": "slurm"}, UnknownName, "engine 'slurm' is unknown; allowed are local, ray"),
        ({}, {"address": "head:6379"}, ValueError, "--address head:6379"),
        ({}, {"at_once": 0}, ValueError, "at_once=0: must be at least 1"),
    ],
)
def test_nothing_begins_if_anything_is_wrong(tmp_path, own_data, wrong, options, error, message):
    fields = {"experiment": "unique", "arm": "nan", "preset": "smoke", "device": "cpu", "changes": TINY}
    last = Job(**{**fields, **wrong}, seed=1, out=tmp_path / "out")
    with pytest.raises(error, match=message):
        run_all([*jobs(tmp_path / "out", 0), last], **options)
    assert not (tmp_path / "out").exists()

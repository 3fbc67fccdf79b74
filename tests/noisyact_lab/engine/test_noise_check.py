"""The manipulation check: it changes nothing of a run, its numbers are right, and arms without noise are named."""

import html
import json
import shutil

import pytest
import tiny
import torch
from run_cases import kept
from text_cases import small_treebank  # noqa: F401

import noisyact as na
from noisyact_lab.analysis.noise_records import hardly_drawn
from noisyact_lab.analysis.results_table import table_of
from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.engine.folder.files import read_lines, write_lines
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run
from noisyact_lab.engine.task import Task
from noisyact_lab.experiments.unique import UNIQUE
from noisyact_lab.report import page

TINY = {"updates": 12, "evaluate_every": 4, "hidden": 8, "test_sequences": 50, "batch": 4}


def job(out, arm="nan-annealed", seed=0, changes=TINY):
    return Job("unique", arm, "smoke", seed, out, device="cpu", changes=changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with one finished run; tests that change it take a copy."""
    out = tmp_path_factory.mktemp("finished")
    run(job(out))
    return out


@pytest.mark.parametrize(
    ("experiment", "arm", "changes"),
    [
        ("unique", "nah-annealed", TINY),
        ("mixture", "nan", {"updates": 12, "evaluate_every": 4, "test_points": 50}),
        ("recall", "nan-annealed", {"updates": 4, "evaluate_every": 2, "validation": 4}),
        ("ptb-word-medium", "nan", {**tiny.PTB_WORD, "epochs": 2, "tokens": 200}),  # with dropout
        ("execute", "nah", {**tiny.EXECUTE, "updates": 10, "evaluate_every": 5}),
    ],
)
def test_a_run_is_the_same_to_the_bit_with_and_without(experiment, arm, changes, treebank, tmp_path, monkeypatch):
    """Evaluations, and checkpoints with the states of all generators."""
    jobs = [Job(experiment, arm, "smoke", 1, tmp_path / name, device="cpu", changes=changes) for name in "ab"]
    for name in ("pictures", "samples"):
        monkeypatch.setattr(load_experiment(experiment).start, name, lambda task: None)
    record = run(jobs[0])
    monkeypatch.setattr(Task, "measure_noise", lambda task: {})
    assert run(jobs[1])["result"] == record["result"]
    checked, without = kept(jobs[0].folder), kept(jobs[1].folder)
    lines = [json.loads(line) for line in checked.pop("noise.jsonl").splitlines()]
    assert checked == without
    assert [line["update"] for line in lines] == [
        line["update"] for line in read_lines(jobs[0].folder / "metrics.jsonl")
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("arm", ["nan-annealed", "reference"])
def test_between_the_replays_of_a_cuda_graph_it_changes_nothing(arm, tmp_path, monkeypatch):
    jobs = [Job("unique", arm, "smoke", 1, tmp_path / name, device="cuda", changes=TINY) for name in "ab"]
    record = run(jobs[0])
    monkeypatch.setattr(Task, "measure_noise", lambda task: {})
    assert run(jobs[1])["result"] == record["result"]
    checked, without = (kept(each.folder) for each in jobs)
    assert len(checked.pop("noise.jsonl").splitlines()) == 3
    assert checked == without


def test_the_numbers_are_those_of_the_model_in_training(finished):
    lines = read_lines(job(finished).folder / "noise.jsonl")
    assert [line["update"] for line in lines] == [4, 8, 12]
    assert list(lines[0]["units"]) == [f"lstm.l0.{gate}" for gate in "ifgoc"]
    task = UNIQUE.start(UNIQUE.effective("nan-annealed", "smoke", TINY), 0, torch.device("cpu"))
    task.model.lstm.weight_ih_l0.data *= 30  # so that it saturates
    task.model.eval()
    state = torch.get_rng_state()
    found = task.measure_noise()
    assert torch.equal(torch.get_rng_state(), state)
    assert not task.model.training
    task.model.train()
    expected = na.saturation(task.model, task.test_x[:, :64])["lstm.l0.g"]
    got = found["lstm.l0.g"]
    assert got["saturated"] == got["drawn"] == pytest.approx(expected.saturated, rel=1e-5)
    assert got["saturated"] > 0.3
    assert got["sigma"] == pytest.approx(expected.sigma, rel=1e-5)
    p = torch.cat([p.detach().flatten() for p in na.noise_parameters(task.model)]).view(5, -1)
    assert [found[f"lstm.l0.{gate}"]["p"] for gate in "ifgoc"] == pytest.approx(p.abs().mean(1).tolist(), rel=1e-5)


@pytest.mark.parametrize(("arm", "keys"), [("hard", set()), ("leak", {"p"})])
def test_an_arm_without_noise_draws_none_and_is_not_marked(arm, keys):
    units = UNIQUE.start(UNIQUE.effective(arm, "smoke", TINY), 0, torch.device("cpu")).measure_noise()
    assert set(units["lstm.l0.f"]) == keys | {"saturated", "sigma", "at_limits"}
    assert units["lstm.l0.f"]["sigma"] == 0
    assert not hardly_drawn(units)


def test_noise_at_the_input_is_drawn_everywhere():
    model = torch.nn.Sequential(na.NoisyHardTanh("nani:sigma=0.1"))
    (group,) = na.saturation(model, torch.zeros(3, 4))
    assert (group.saturated, group.drawn) == (0.0, 1.0)
    assert na.saturation(torch.nn.Sequential(torch.nn.Tanh()), torch.zeros(3, 4))["0"].drawn != 0  # NaN: no noise


def put_noise(out, arm, seed, *shares):
    path = folder_of(out, "unique", "smoke", arm, seed) / "noise.jsonl"
    write_lines(path, [{"update": 12, "units": {f"u{i}": {"saturated": s, "drawn": s} for i, s in enumerate(shares)}}])


def test_the_table_and_the_page_mark_an_arm_that_hardly_drew_noise(finished, tmp_path):
    for arm, seeds in (("nan", 2), ("nah-annealed", 1), ("leak", 1)):
        for seed in range(seeds):
            shutil.copytree(job(finished).folder, folder_of(tmp_path, "unique", "smoke", arm, seed))
    put_noise(tmp_path, "nan", 0, 0.0, 0.004)
    put_noise(tmp_path, "nan", 1, 0.0, 0.012)
    put_noise(tmp_path, "nah-annealed", 0, 0.0, 0.02)
    (folder_of(tmp_path, "unique", "smoke", "leak", 0) / "noise.jsonl").unlink()  # as in older records
    table = table_of(UNIQUE, tmp_path, "smoke")
    rows = {row.name: row for row in table.rows}
    assert rows["nan"].noise["u1"]["drawn"] == pytest.approx(0.008)
    assert [name for name, row in rows.items() if row.hardly_drawn] == ["nan"]
    text = table.text(80)
    assert any(line.split()[:3] == ["nan", "†", "2"] for line in text.splitlines())
    assert "nonlinearity: nan (at most 0.8%, in u1)" in " ".join(text.split())
    record = {row["arm"]: row["hardly_drawn"] for row in table.as_json()["rows"]}
    assert (record["nan"], record["nah-annealed"], record["leak"]) == (True, False, None)
    shown = html.unescape(page.write(tmp_path, tmp_path / "page.html").read_text())
    assert shown.count("†</b>") == 1


def test_the_page_has_the_curves_of_every_gate(finished, tmp_path):
    text = page.write(finished, tmp_path / "page.html").read_text()
    (data,) = json.loads(text.split('id="data">')[1].split("</script>")[0])
    names = ("share saturated", "mean sigma", "mean |p|")
    assert data["noise"] == {
        f"lstm.l0.{gate}": [f"noise of lstm.l0.{gate}: {name}" for name in names] for gate in "ifgoc"
    }
    assert not any(metric.startswith("noise") for metric in data["metrics"])
    line = data["arms"][0]["mean"]["noise of lstm.l0.g: mean |p|"]
    assert line["x"] == [4, 8, 12]
    assert all(0 < p < 1 for p in line["y"])


@pytest.mark.parametrize("content", ["[1]\n", '{"update": 4, "units": 7}\n', '{"update": 4}\n', "{\n"])
def test_a_broken_record_is_noted_and_the_run_counts(content, finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    (job(tmp_path).folder / "noise.jsonl").write_text(content)
    table = table_of(UNIQUE, tmp_path, "smoke")
    (row,) = (row for row in table.rows if row.name == "nan-annealed")
    assert (row.finished, row.partial, row.noise) == (1, 0, {})
    assert any("nan-annealed seed-0: its noise.jsonl cannot be read" in note for note in table.notes)
    page.write(tmp_path, tmp_path / "page.html")


def test_a_run_begun_before_noise_was_recorded_resumes(finished, tmp_path, monkeypatch):
    def stop(count, total, line):
        if count == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Task, "measure_noise", lambda task: {})
        with pytest.raises(KeyboardInterrupt):
            run(job(tmp_path), stop)
    folder = job(tmp_path).folder
    assert not (folder / "noise.jsonl").exists()
    assert run(job(tmp_path))["result"] == run(job(finished))["result"]
    assert [line["update"] for line in read_lines(folder / "noise.jsonl")] == [8, 12]


def test_what_was_recorded_after_the_checkpoint_is_dropped(tmp_path):
    def stop(count, total, line):
        if count == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(job(tmp_path), stop)
    path = job(tmp_path).folder / "noise.jsonl"
    path.write_text(path.read_text() + '{"update": 8, "units": {}}\n{"upd')  # killed before the next checkpoint
    run(job(tmp_path))
    assert [line["update"] for line in read_lines(path)] == [4, 8, 12]
    assert all(line["units"] for line in read_lines(path))

"""The command line: what it prints, its exit codes, and that it is quick to help."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import SET, SMOKE, TINY, noisyact

from noisyact_lab.cli.progress import View
from noisyact_lab.engine.folder.files import read_lines
from noisyact_lab.engine.job import folder_of
from noisyact_lab.report import figures


def test_help_does_not_import_torch():
    """The import takes longer than the help may."""
    code = (
        "import sys; sys.argv = ['noisyact', '--help']\n"
        "from noisyact_lab.cli import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "False"
    for command in ("list", "run", "reproduce", "sweep", "table", "figures", "data", "bench", "Exit codes"):
        assert command in done.stdout


def test_list():
    listed = noisyact("list").stdout
    assert max(map(len, listed.splitlines())) <= 80
    text = " ".join(listed.split())
    found = {e["name"]: e for e in json.loads(noisyact("list", "--json").stdout)}
    assert set(found) >= {"mixture", "mnist", "unique"}
    for name, experiment in found.items():
        assert f"{name}: {experiment['title']}" in text
        assert set(experiment["minutes"]) == {"smoke", "short", "paper"}
    assert "mnist (" in text
    assert {"name": "nan", "title": "NAN", "paper": 31.12, "papers": {}} in found["unique"]["arms"]


def test_run_table_and_again(tmp_path):
    command = ["run", "unique", "--arm", "nan", *SMOKE, *SET, "--out", tmp_path]
    first = noisyact(*command)
    assert "unique nan seed 0" in first.stderr
    assert "test_error: " in first.stdout
    record = json.loads(noisyact(*command, "--json").stdout)
    assert record["settings"]["hidden"] == 4
    assert record["status"] == "finished"
    stamp = (folder_of(tmp_path, "unique", "smoke", "nan", 0) / "metrics.jsonl").stat().st_mtime_ns
    noisyact(*command, "--force")
    assert (folder_of(tmp_path, "unique", "smoke", "nan", 0) / "metrics.jsonl").stat().st_mtime_ns != stamp
    assert "use --force" in noisyact(*command, "--set", "mlp=3", code=2).stderr
    table = noisyact("table", "unique", "--out", tmp_path, "--preset", "smoke").stdout
    assert "31.12" in table
    assert "Note: nan seed-0: not the preset's length=6" in table
    rows = json.loads(noisyact("table", "unique", "--out", tmp_path, "--preset", "smoke", "--json").stdout)["rows"]
    assert [row["finished"] for row in rows if row["arm"] == "nan"] == [1]


def test_flags_beat_the_file(tmp_path):
    file = tmp_path / "run.toml"
    settings = "\n".join(TINY).replace("hidden=4", "hidden=5\nmlp=7")
    file.write_text(f'arm = "hard"\nseed = 4\npreset = "smoke"\nout = "{tmp_path}"\n[settings]\n{settings}\n')
    command = ("run", "unique", "--config", file, "--arm", "leak", "--set", "hidden=6", "--json")
    record = json.loads(noisyact(*command).stdout)
    assert (record["arm"], record["seed"], record["preset"]) == ("leak", 4, "smoke")
    assert (record["settings"]["hidden"], record["settings"]["mlp"]) == (6, 7)


def test_reproduce_shows_divergence_and_failure(tmp_path):
    """A run that diverged is a result; one that failed is not. One run is diverged beforehand."""
    noisyact("run", "unique", "--arm", "nan", *SMOKE, *SET, "--set", "learning_rate=1e30", "--out", tmp_path)
    command = ["reproduce", "unique", "--arms", "nan,hard", "--seeds", "1", *SMOKE, *SET, "--out", tmp_path]
    done = noisyact(*command, code=1)
    assert "learning_rate is 1e+30 there" in done.stderr
    assert "1 (1 diverged)" in done.stdout
    assert "[2/2] unique" in done.stderr
    assert "paper" in done.stdout
    assert "Agreement: " in done.stdout


def test_sweep_has_a_row_a_value(tmp_path):
    changes = ["--set", "c=0.5,1e30", *SET]
    command = ["sweep", "unique", "--arm", "nan", *changes, "--seeds", "1", "--jobs", "1", *SMOKE, "--out", tmp_path]
    done = json.loads(noisyact(*command, "--json").stdout)
    first, second = done["tables"][0]["rows"]
    assert first["arm"].startswith("c=0.5,updates=12,")
    assert first["finished"] == 1
    assert second["diverged"] == 1
    assert len(list(tmp_path.glob("sweep/c=*/unique/smoke/nan/seed-0/result.json"))) == 2


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (["run", "nope", "--arm", "nan"], ["experiment 'nope'", "mixture, mnist"]),
        (["run", "unique"], ["--arm is missing", "nan-annealed"]),
        (["run", "unique", "--arm", "nope"], ["arm 'nope'", "reference, hard, leak"]),
        (["run", "unique", "--arm", "nan", "--preset", "big"], ["preset 'big'", "smoke, short, paper"]),
        (["run", "unique", "--arm", "nan", "--device", "tpu"], ["device 'tpu'", "auto, cpu, cuda"]),
        (["run", "unique", "--arm", "nan", "--set", "hiden=3"], ["setting 'hiden'", "hidden"]),
        (["run", "unique", "--arm", "nan", "--set", "hidden=many"], ["hidden='many'", "a whole number"]),
        (["run", "unique", "--arm", "nan", "--set", "hidden"], ["'hidden'", "name=value"]),
        (["run", "unique", "--arm", "nan", "--set", "scheme=nope"], ["scheme 'nope' is unknown", "nan, nah"]),
        (["run", "unique", "--arm", "nan", "--seed", "-1"], ["--seed -1: must be at least 0"]),
        (["run", "unique", "--config", "/no/such.toml"], ["/no/such.toml", "No such file"]),
        (["reproduce", "unique", "--arms", "nan,nope"], ["arm 'nope'", "reference, hard"]),
        (["reproduce", "unique", "--seeds", "0"], ["--seeds 0: must be at least 1"]),
        (["reproduce", "unique", "--engine", "slurm"], ["engine 'slurm'", "local, ray"]),
        (["reproduce", "unique", "--address", "head:6379"], ["--address head:6379", "--engine ray"]),
        (
            ["reproduce", "unique", "--engine", "ray", "--address", "127.0.0.1:9"],
            ["Ray cluster '127.0.0.1:9' cannot be reached", "refused"],
        ),
        (["reproduce", "unique", "--engine", "ray", "--address", "head"], ["Ray cluster 'head'", "Invalid address"]),
        (["reproduce", "unique", "--engine", "ray", "--device", "tpu"], ["device 'tpu'", "auto, cpu, cuda"]),
        (["reproduce", "unique", "--log", "sacred"], ["logger 'sacred'", "tensorboard, wandb, trackio, mlflow"]),
        (["sweep", "unique", "--arm", "nan", "--set", "c=1,,2"], ["c=1,,2", "empty"]),
        (["table", "nope"], ["experiment 'nope'", "unique"]),
        (["table", "unique", "--out", "/no/such"], ["/no/such"]),
        (["data", "verify", "nope"], ["data set 'nope'", "mnist"]),
        (["data", "fetch", "nope"], ["data set 'nope'", "mnist"]),
        (["nope"], ["nope"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0] != value else None,
)
def test_wrong_arguments_are_named(command, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = noisyact(*command, code=2).stderr
    for part in parts:
        assert part in said


def test_bad_file_of_settings(tmp_path):
    file = tmp_path / "run.toml"
    for text, said in (
        ("arms = 1", "'arms' is unknown; allowed are arm, seed"),
        ("seed = true", "seed=True: must be a whole number"),
        ("seed =", "is not TOML"),
        (f"[settings]\nhidden = 1{400 * '0'}", "must be a whole number"),
        (f"[settings]\nc = 1{400 * '0'}", "must be a finite number"),
    ):
        file.write_text(text)
        assert said in noisyact("run", "unique", "--arm", "nan", "--config", file, code=2).stderr


def test_missing_data_is_named_before_anything_is_run(tmp_path, monkeypatch):
    monkeypatch.setenv("NOISYACT_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said = noisyact("reproduce", "unique", "mnist", *SMOKE, "--out", tmp_path / "out", code=2).stderr
    assert "noisyact data fetch mnist" in said
    assert not (tmp_path / "out").exists()
    listed = noisyact("data", "list").stdout
    assert "missing" in listed
    assert max(map(len, listed.splitlines())) <= 80
    assert {"mnist", "ptb"} <= {entry["name"] for entry in json.loads(noisyact("data", "list", "--json").stdout)}
    assert "noisyact data fetch mnist" in noisyact("data", "verify", "mnist", code=2).stderr


def test_of_all_experiments_those_without_data_are_skipped(tmp_path, monkeypatch):
    """They are named with how to get the data, the others are done, and the exit code says it."""
    monkeypatch.setenv("NOISYACT_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("noisyact_lab.engine.experiment.experiment_names", lambda: ["mnist", "unique"])
    command = ["reproduce", "--arms", "nan", "--seeds", "1", *SMOKE, *SET, "--out", tmp_path / "out", "--json"]
    done = noisyact(*command, code=3)
    said = json.loads(done.stdout)
    assert [table["rows"][0]["finished"] for table in said["tables"]] == [1]
    assert [entry["experiment"] for entry in said["skipped"]] == ["mnist"]
    assert "noisyact data fetch mnist" in said["skipped"][0]["reason"]
    assert done.stderr.count("SKIPPED mnist: data set 'mnist'") == 2
    # What failed counts for more than what was skipped.
    again = noisyact(*command, "--set", "mlp=3", code=1)
    assert "use --force" in json.loads(again.stdout)["failed"][0]["error"]
    assert "SKIPPED mnist" in again.stderr


def test_runs_are_logged(tmp_path):
    flags = [*SMOKE, *SET, "--log", "tensorboard", "--log", f"tensorboard:{tmp_path / 'all'}", "--out", tmp_path]
    noisyact("run", "unique", "--arm", "hard", *flags)
    noisyact("sweep", "unique", "--arm", "nan", "--set", "c=0.5,1", "--seeds", "1", *flags)
    assert len(list(tmp_path.glob("unique/smoke/hard/seed-0/logs/events*"))) == 1
    assert len(list(tmp_path.glob("sweep/c=*/unique/smoke/nan/seed-0/logs/events*"))) == 2
    assert len(list(tmp_path.glob("all/unique/smoke/*/seed-0-*/events*"))) == 3


def test_without_ray_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    said = noisyact("reproduce", "unique", "--engine", "ray", "--out", tmp_path / "out", code=2).stderr
    assert "ray is not installed; it needs: pip install '.[ray]' in a checkout of noisyact" in said
    assert not (tmp_path / "out").exists()


def test_figures_prints_what_was_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "draw_all", lambda folder: [folder / "a.svg"])
    assert noisyact("figures", "-o", tmp_path).stdout == f"{tmp_path / 'a.svg'}\n"


def test_bench_passes_its_arguments_on(monkeypatch):
    from noisyact_lab.bench import __main__ as bench

    seen = []
    monkeypatch.setattr(bench, "main", lambda arguments: seen.append(arguments) or 1)
    noisyact("bench", "activations", "--repeats", "3", "--help", code=1)
    assert seen == [["activations", "--repeats", "3", "--help"]]


def test_lines_where_there_is_no_terminal(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with View(2, "runs") as view:
        for done in (100, 200, 400):
            view.at("a", done, 1000)
            now[0] += 4.0
        view.ended("a", "finished")
    assert capsys.readouterr().err.splitlines() == ["a: 400 of 1000, 37.5/s, 0:16 left", "[1/2] a: finished"]


def test_bars_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with View(2, "runs") as view:
        view.at("a [b]", 1, 4)
        view.at("a [b]", 2, 4)
        view.say("[warning] x")
        view.ended("a [b]", "finished")
    said = capsys.readouterr().err
    assert "[1/2] a [b]: finished" in said
    assert "1/2" in said
    assert "[warning] x" in said


@pytest.mark.long
@pytest.mark.usefixtures("one_thread")  # as in the processes
def test_interrupted_and_killed_and_resumed(tmp_path):
    """Ctrl-C is 130 and says how to go on; then a kill; the end is that of a run left alone."""
    changes = ["updates=250", "evaluate_every=5", "test_sequences=40"]
    flags = [word for change in changes for word in ("--set", change)]
    command = ["run", "unique", "--arm", "nan", *SMOKE, *flags, "--out"]

    def begin(signal_, lines):
        process = subprocess.Popen(
            [sys.executable, "-m", "noisyact_lab", *command, tmp_path / "a"], stderr=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        end = time.monotonic() + 180  # on a machine with other work
        while len(read_lines(folder / "metrics.jsonl")) < lines:
            assert time.monotonic() < end
            time.sleep(0.005)
        process.send_signal(signal_)
        said = process.communicate()[1]
        return process.returncode, said

    folder = folder_of(tmp_path / "a", "unique", "smoke", "nan", 0)
    code, said = begin(signal.SIGINT, 5)
    assert code == 130
    assert "To resume: noisyact run unique --arm nan" in said
    assert "Traceback" not in said
    assert begin(signal.SIGKILL, len(read_lines(folder / "metrics.jsonl")) + 5)[0] == -signal.SIGKILL
    assert 10 <= len(read_lines(folder / "metrics.jsonl")) < 50
    for out in ("a", "b"):
        noisyact(*command, tmp_path / out)
    other = folder_of(tmp_path / "b", "unique", "smoke", "nan", 0)
    files = ["metrics.jsonl", "config.json", *_checkpoint_files(other)]
    assert len(files) == 6
    for name in files:
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name


def _checkpoint_files(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.glob("checkpoints/*/*")]

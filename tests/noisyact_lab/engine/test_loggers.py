"""Loggers: everything is logged once even if the run is interrupted, and a failing logger does not stop the run."""

import importlib.util
import json
import os
import sqlite3
import struct
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util import tensor_util

from noisyact_lab.engine.folder.files import read_json, read_lines
from noisyact_lab.engine.job import Job
from noisyact_lab.engine.logging import loggers
from noisyact_lab.engine.parallel.processes import run_all
from noisyact_lab.engine.run import run

TINY = {"updates": 12, "evaluate_every": 2, "test_sequences": 40, "hidden": 4, "batch": 4, "length": 6}


def job(out, *log, force=False) -> Job:
    return Job("unique", "nan", "smoke", 0, out, "cpu", TINY, force, log)


class Stopped(Exception):
    """In the middle of a run."""


def do_in_two_parts(todo: Job) -> dict:
    """A run that fails after three evaluations, and is resumed."""

    def stop(done, *_):
        if done == 8:
            raise Stopped

    with pytest.raises(Stopped):
        run(todo, stop)
    assert [line["update"] for line in read_lines(todo.folder / "metrics.jsonl")] == [2, 4, 6, 8]
    return run(todo)


def points(folder: Path) -> list[tuple[str, int, float]]:
    """All scalars of the event files of a folder: tag, step, value, each as often as it is there."""
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    found.append((value.tag, event.step, float(tensor_util.make_ndarray(value.tensor))))
    return found


def expected_points(folder: Path) -> list[tuple[str, int, float]]:
    lines = read_lines(folder / "metrics.jsonl")
    return [(name, line["update"], line[name]) for line in lines for name in line if name != "update"]


def run_files(folder: Path) -> dict[str, bytes]:
    """The files of a run without times, code versions and the loggers' files."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {str(path.relative_to(folder)): path for path in files}
    return {
        name: path.read_bytes()
        for name, path in names.items()
        if name not in ("timing.jsonl", "result.json") and not name.startswith("logs/")
    }


def test_tensorboard_has_every_point_once(tmp_path):
    todo = job(tmp_path / "logged", "tensorboard")
    record = do_in_two_parts(todo)
    logged = points(todo.folder / "logs")
    result = [(tag, step, value) for tag, step, value in logged if tag.startswith("result/")]
    expected = expected_points(todo.folder)
    assert len(expected) == 18
    assert [point for point in logged if point not in result] == [
        (tag, step, pytest.approx(value, rel=1e-6)) for tag, step, value in expected
    ]
    reached = {name: value for name, value in record["result"].items() if value is not None}
    assert {step for _, step, _ in result} == {12}
    assert sorted(value for *_, value in result) == pytest.approx(sorted(reached.values()))
    run(job(tmp_path / "plain"))
    assert run_files(todo.folder) == run_files(job(tmp_path / "plain").folder)
    assert not (job(tmp_path / "plain").folder / "logs").exists()


def test_tensorboard_has_settings_and_times(tmp_path):
    todo = job(tmp_path, "tensorboard")
    do_in_two_parts(todo)
    (path,) = todo.folder.glob("logs/events*")
    events = list(EventFileLoader(str(path)).Load())
    values = {value.tag: value for event in events for value in event.summary.value}
    assert '"hidden": 4' in values["config/text_summary"].tensor.string_val[0].decode()
    assert values["_hparams_/session_start_info"].metadata.plugin_data.content
    times = {event.step: event.wall_time for event in events if any(v.tag == "loss" for v in event.summary.value)}
    at = {line["update"]: line["at"] for line in read_lines(todo.folder / "timing.jsonl")}
    assert times == pytest.approx(at, abs=1e-3)


def test_a_folder_for_all_runs(tmp_path):
    """Two runs of the same settings, kept in different places, do not get into each other's way."""
    todo = [job(tmp_path / name, f"tensorboard:{tmp_path / 'all'}") for name in ("a", "b")]
    for each in todo:
        do_in_two_parts(each)
    folders = sorted((tmp_path / "all" / "unique" / "smoke" / "nan").iterdir())
    assert len(folders) == 2
    for folder in folders:
        assert folder.name.startswith("seed-0-")
        assert len(points(folder)) == 18 + 4
    assert not list(todo[0].folder.glob("logs/events*"))


def test_a_finished_run_is_logged_later_and_once(tmp_path):
    run(job(tmp_path))
    todo = job(tmp_path, "tensorboard")
    run(todo)
    (path,) = todo.folder.glob("logs/events*")
    assert len(points(path.parent)) == 18 + 4
    stamp = path.stat().st_mtime_ns
    run(todo)
    assert [p.stat().st_mtime_ns for p in todo.folder.glob("logs/events*")] == [stamp]


def test_a_forced_run_is_another(tmp_path):
    todo = job(tmp_path, "tensorboard")
    run(todo)
    before = read_json(todo.folder / "logs" / "loggers.json")
    run(job(tmp_path, force=True))
    assert not (todo.folder / "logs").exists()
    run(todo)
    after = read_json(todo.folder / "logs" / "loggers.json")
    assert before["id"] != after["id"]
    assert before["finished"] == after["finished"] == ["tensorboard"]


@pytest.mark.parametrize("where", ["start", "log", "finish"])
def test_a_logger_that_fails_is_given_up_and_the_run_goes_on(tmp_path, monkeypatch, where):
    calls = []

    class Broken(loggers.TensorBoard):
        def start(self, config, folder, identity):
            self._called("start")
            return 0

        def log(self, update, metrics, at):
            self._called("log")

        def finish(self, record):
            self._called("finish")

        def _called(self, method):
            calls.append(method)
            if method == where:
                raise ConnectionError("the server\nis gone")

    monkeypatch.setitem(loggers.LOGGERS, "broken", Broken)
    todo = job(tmp_path / "a", "broken", "tensorboard")
    with pytest.warns(
        UserWarning, match="logger 'broken' is dropped, the run continues: ConnectionError: the server is"
    ):
        run(todo)
    assert calls == {"start": ["start"], "log": ["start", "log"], "finish": ["start"] + 6 * ["log"] + ["finish"]}[where]
    assert read_json(todo.folder / "logs" / "loggers.json")["finished"] == ["tensorboard"]
    assert len(points(todo.folder / "logs")) == 18 + 4
    run(job(tmp_path / "b"))
    assert run_files(todo.folder) == run_files(job(tmp_path / "b").folder)


def test_what_a_logger_prints_is_not_in_the_results(tmp_path, monkeypatch, capsys):
    class Loud(loggers.TensorBoard):
        def start(self, config, folder, identity):
            print("* here is an advertisement")
            return super().start(config, folder, identity)

    monkeypatch.setitem(loggers.LOGGERS, "loud", Loud)
    run(job(tmp_path, "loud"))
    said = capsys.readouterr()
    assert said.out == ""
    assert "advertisement" in said.err


def test_in_a_grid_the_warning_is_an_event(tmp_path):
    """The folder that is given is a file."""
    (tmp_path / "file").touch()
    seen = []
    todo = [job(tmp_path, f"tensorboard:{tmp_path / 'file'}")]
    (outcome,) = run_all(todo, 1, lambda job, event: seen.append(event))
    assert outcome.record is not None
    assert outcome.record["status"] == "finished"
    (warning,) = [event.text for event in seen if event.kind == "warning"]
    assert "is dropped, the run continues: NotADirectoryError" in warning
    assert seen[-1].kind == "ended"


def test_a_missing_library_is_named_with_what_to_install(monkeypatch, tmp_path):
    for name, extra in (
        ("tensorboard", "experiments"),
        ("wandb", "wandb"),
        ("trackio", "trackio"),
        ("mlflow", "mlflow"),
    ):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ValueError, match=rf"logger '{name}'.*pip install '\.\[{extra}\]'"):
            loggers.check([f"{name}:x"])
    with pytest.raises(ValueError, match="logger 'sacred' is unknown; allowed are tensorboard, wandb, trackio, mlflow"):
        loggers.check(["sacred"])


def test_a_folder_with_the_name_of_a_library_is_none(monkeypatch, tmp_path):
    if importlib.util.find_spec("wandb") is not None:
        pytest.skip("wandb is installed, and found before the folder")
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="wandb is not installed"):
        loggers.check(["wandb"])


def needs(name: str):
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing, reason=f"{name} is not installed: pip install 'noisyact[{name}]'")


@needs("wandb")
@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    todo = job(tmp_path, "wandb:proj")
    do_in_two_parts(todo)
    (path,) = todo.folder.glob("logs/wandb/offline-run-*/run-*.wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    records = [Record.FromString(data) for data in leveldb_log(path.read_bytes()[7:])]
    (run,) = [record.run for record in records if record.HasField("run")][:1]
    assert (run.project, run.display_name) == ("proj", "unique/smoke/nan/seed-0")
    assert run.run_id == read_json(todo.folder / "logs" / "loggers.json")["id"]
    history = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    found = [(name, row["_step"], row[name]) for row in history for name in ("loss", "c", "test_error")]
    assert found == expected_points(todo.folder)


def leveldb_log(data: bytes) -> list[bytes]:
    """The records of a file in the log format of LevelDB, whose blocks are of 32 KiB and begin before a header of 7."""
    records, at, part = [], 7, b""
    data = bytes(7) + data
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            records.append(part)
            part = b""
    return records


@needs("trackio")
@pytest.mark.filterwarnings("ignore")
def test_trackio(tmp_path):
    from trackio.sqlite_storage import SQLiteStorage

    project = f"noisyact-test-{os.getpid()}"
    todo = job(tmp_path, f"trackio:{project}")
    do_in_two_parts(todo)
    try:
        (run,) = SQLiteStorage.get_run_records(project)
        logs = SQLiteStorage.get_logs(project, run["name"])
    finally:
        SQLiteStorage.get_project_db_path(project).unlink()
    found = [(name, row["step"], row[name]) for row in logs[:-1] for name in ("loss", "c", "test_error")]
    assert found == expected_points(todo.folder)
    assert logs[-1]["status"] == "finished"


@needs("mlflow")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_in_a_file(tmp_path):
    todo = job(tmp_path, f"mlflow:sqlite:///{tmp_path / 'mlflow.db'}")
    do_in_two_parts(todo)
    connection = sqlite3.connect(tmp_path / "mlflow.db")
    found = connection.execute("select key, step, value from metrics where key not like 'result/%'").fetchall()
    assert sorted(found) == sorted(expected_points(todo.folder))
    assert connection.execute("select name, status from runs").fetchall() == [("unique/smoke/nan/seed-0", "FINISHED")]
    assert connection.execute("select value from params where key = 'hidden'").fetchall() == [("4",)]
    connection.close()


@needs("mlflow")
@pytest.mark.filterwarnings("default")
def test_mlflow_whose_server_is_gone(tmp_path):
    todo = job(tmp_path, "mlflow:http://127.0.0.1:9")
    with pytest.warns(UserWarning, match="logger 'mlflow:http://127.0.0.1:9' is dropped"):
        assert run(todo)["status"] == "finished"

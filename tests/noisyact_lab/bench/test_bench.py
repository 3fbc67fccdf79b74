"""The benchmarks refuse wrong results, and print what they measured."""

import json
import time

import pytest
import torch

from noisyact.ops.deferred_leaf import Contributions
from noisyact_lab.bench import activations, attention, resets, search, timing, updates
from noisyact_lab.bench.__main__ import main
from noisyact_lab.engine.folder.records import commit


@pytest.fixture(autouse=True)
def _keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_table_and_record(capsys, tmp_path):
    record = tmp_path / "record.json"
    assert (
        main(["activations", "--device", "cpu", "--elements", str(1024 * 300), "--repeats", "2", "--json", str(record)])
        == 0
    )
    out = capsys.readouterr().out
    assert "hard tanh, NAH" in out
    assert "torch: " in out
    written = json.loads(record.read_text())
    assert len(written["rows"]) == len(activations.cases("cpu"))
    assert written["refused"] == []
    assert written["setting"]["commit"] == commit()
    for row in written["rows"]:
        assert row["both_ratio"] == pytest.approx(row["both_ms"] / row["hardtanh_both_ms"])


def test_least_times_of_alternating_calls(monkeypatch):
    calls, now = [], iter([0, 5, 10, 13, 20, 24, 30, 37, 40, 46, 50, 59])  # 5, 4 and 6 seconds; 3, 7 and 9 seconds
    monkeypatch.setattr(timing, "cpu_clock", lambda threads: {3: lambda: next(now)}[threads])
    assert timing.least_times([lambda: calls.append("a"), lambda: calls.append("b")], 0.1, 3) == [4, 3]
    assert "".join(calls) == "ab" + 3 * "ab"  # a warm-up, then three turns


def test_one_thread_is_measured_by_its_cpu_time(capsys):
    assert timing.cpu_clock(1) is time.thread_time
    assert timing.cpu_clock(2) is time.perf_counter
    assert main(["activations", "--device", "cpu", "--threads", "1", "--elements", "2048", "--repeats", "1"]) == 0
    assert "times: CPU time of the thread" in capsys.readouterr().out


def test_wrong_results_have_no_speed(monkeypatch, capsys):
    right = activations.noisy
    monkeypatch.setattr(activations, "noisy", lambda x, *rest, **more: right(x, *rest, **more) * 1.05)
    assert main(["activations", "--device", "cpu", "--elements", str(1024 * 300), "--repeats", "1"]) == 1
    out = capsys.readouterr().out
    assert out.count("REFUSED") == len(activations.cases("cpu"))
    assert "ms" not in out.split("case")[1].split("REFUSED")[0]


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["activations", "--elements", "1000"], ["activations", "--repeats", "0"]]
)
def test_wrong_arguments_stop_it(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert arguments[-1] in capsys.readouterr().err


def test_attention_models(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(attention, "CASES", [case for case in attention.CASES if case.name == "translation"])
    record = tmp_path / "record.json"
    assert main(["attention", "--device", "cpu", "--repeats", "1", "--json", str(record)]) == 0
    assert "words a second" in capsys.readouterr().out
    (row,) = json.loads(record.read_text())["rows"]
    assert row["ratio"] == pytest.approx(row["noisy_ms"] / row["soft_ms"])
    assert row["words_a_second"] == pytest.approx(1e3 * row["words"] / row["noisy_ms"])


def test_wrong_cells_have_no_speed(monkeypatch, capsys):
    monkeypatch.setattr(attention, "CASES", [case for case in attention.CASES if case.name == "translation"])
    right = attention._unrolled
    monkeypatch.setattr(
        attention, "_unrolled", lambda cell, x: right(cell, x) * (1.0 if cell.backend == "reference" else 1.01)
    )
    assert main(["attention", "--device", "cpu", "--repeats", "1"]) == 1
    out = capsys.readouterr().out
    assert "REFUSED translation: not measured, its results are wrong: asking" in out
    assert " ms" not in out


def test_an_attention_model_whose_step_has_a_wrong_gradient_is_not_measured(monkeypatch, capsys):
    monkeypatch.setattr(attention, "CASES", [case for case in attention.CASES if case.name == "caption"])
    add = Contributions.add
    monkeypatch.setattr(Contributions, "add", lambda self, *tensors: add(self, *[1.01 * tensor for tensor in tensors]))
    assert main(["attention", "--device", "cpu", "--repeats", "1"]) == 1
    said = capsys.readouterr()
    assert "in a step, allowed 1e-3" in said.out + said.err


def test_resets(monkeypatch, capsys):
    monkeypatch.setattr(resets, "SHAPES", [(9, 3, 8)])
    arguments = ["resets", "--device", "cpu", "--repeats", "1", "--threads", "1"]
    assert main(arguments) == 0
    assert "soft LSTM without noise" in capsys.readouterr().out
    monkeypatch.setattr(resets, "_check", lambda layer, x, reset: resets_are_wrong())
    assert main(arguments) == 1
    assert "REFUSED" in capsys.readouterr().out


def resets_are_wrong():
    raise AssertionError("off by 1")


def test_updates_of_small_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(updates, "CASES", [("mixture", "nan"), ("mnist", "nah")])
    monkeypatch.setenv("NOISYACT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    record = tmp_path / "record.json"
    assert main(["updates", "--device", "cpu", "--repeats", "1", "--json", str(record)]) == 1
    assert "REFUSED mnist nah: data set 'mnist'" in capsys.readouterr().out
    (row,) = json.loads(record.read_text())["rows"]
    assert 0 < row["host_us"] <= row["update_us"]
    assert 0 < row["plain_host_us"] <= row["plain_us"]
    assert row["checkpoint_ms"] > 0


def test_beam_search(capsys, tmp_path):
    record = tmp_path / "record.json"
    assert main(["search", "--device", "cpu", "--repeats", "1", "--json", str(record)]) == 0
    assert "sentences a second" in capsys.readouterr().out
    (row,) = json.loads(record.read_text())["rows"]
    assert (row["beam"], row["sentences"], row["words"]) == (5, 40, 12)
    assert row["ratio"] == pytest.approx(row["noisy_s"] / row["soft_s"])


def test_wrong_translations_have_no_speed(monkeypatch, capsys):
    right = search.Translator.numbers
    monkeypatch.setattr(
        search.Translator, "numbers", lambda self, sentences: [(*found[:-1], 7) for found in right(self, sentences)]
    )
    assert main(["search", "--device", "cpu", "--repeats", "1"]) == 1
    out = capsys.readouterr().out
    assert "REFUSED beam search: not measured, its results are wrong: sentence 0" in out
    assert " s  " not in out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--device", "bogus"], "--device bogus: must be cpu, cuda or cuda:N"),
        (["--device", "meta"], "--device meta: must be cpu, cuda or cuda:N"),
        (["--device", "cuda:99"], "--device cuda:99: there are "),
        (["--device", "cpu", "--json", "/no/such/record.json"], "there is no folder /no/such"),
    ],
)
@pytest.mark.parametrize("what", [["activations"], ["recurrent", "--grid"]], ids=" ".join)
def test_what_cannot_be_measured_is_said_before_anything_is(what, flags, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*what, *flags])
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""

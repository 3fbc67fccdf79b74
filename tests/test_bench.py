"""The benchmark measures right results only, and says what it measured."""

import json

import pytest
import torch

from noisyact.bench import activations
from noisyact.bench.__main__ import main


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
    for row in written["rows"]:
        assert row["both_ratio"] == pytest.approx(row["both_ms"] / row["hardtanh_both_ms"])


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

"""Every example runs at a small size, without data sets, and what it trains learns."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def _elsewhere(own_data, tmp_path, monkeypatch):
    """No data sets, and nothing is written into the repository."""
    monkeypatch.chdir(tmp_path)


def run(name):
    return runpy.run_path(str(EXAMPLES / name))["main"](["--smoke"])


def test_the_character_model_learns():
    found = run("character_model.py")
    assert found["last"] < 0.5 * found["first"]


@pytest.mark.filterwarnings(
    "ignore:.*does not have many workers:lightning.fabric.utilities.warnings.PossibleUserWarning",
    "ignore:.*treespec, LeafSpec:FutureWarning",
)
def test_lightning_learns_and_anneals():
    found = run("lightning_model.py")
    assert found["last"] < 0.8 * found["first"]
    assert found["noise/scale"] < 0.6


def test_the_hugging_face_trainer_learns_and_anneals():
    found = run("hugging_face_trainer.py")
    assert found["last"] < 0.8 * found["first"]
    assert found["scale"] < 0.6


def test_the_classifier_learns_and_becomes_ordinary_again(capsys):
    assert run("mnist_classifier.py")["wrong"] < 0.5
    assert "Tanh()" in capsys.readouterr().out

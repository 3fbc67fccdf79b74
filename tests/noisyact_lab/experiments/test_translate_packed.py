"""Translation on a machine with only the packed corpus: it trains, and BLEU on plain text is computed elsewhere."""

import json
import math

import pytest
import torch
from parallel_cases import packed_backwards  # noqa: F401
from tiny import TRANSLATE as TINY
from typer.testing import CliRunner

from noisyact_lab.analysis import scoring
from noisyact_lab.cli.app import app
from noisyact_lab.data import moses
from noisyact_lab.data.locate import Missing
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.translate import plain_bleu
from noisyact_lab.experiments.translate.task import TRANSLATIONS
from noisyact_lab.experiments.translate.translate import TRANSLATE, Translate
from noisyact_lab.experiments.translate.translator import PLAIN, PLAIN_INTERVAL, Translator

pytest.importorskip("sacrebleu")


@pytest.fixture(name="no_sacremoses")
def _no_sacremoses(monkeypatch):
    def missing():
        raise ValueError("words as Moses has them need sacremoses, which is not installed")

    monkeypatch.setattr(moses, "_sacremoses", missing)


def test_trains_without_text_and_without_sacremoses(packed_alone, tmp_path, no_sacremoses):
    TRANSLATE.find_data(TRANSLATE.effective("nah", "smoke", TINY))
    record = run(Job("translate", "nah", "smoke", 0, tmp_path, "cpu", TINY))
    assert PLAIN not in record["result"]
    assert record["result"]["test_bleu"] >= 0
    folder = folder_of(tmp_path, "translate", "smoke", "nah", 0)
    assert len(scoring.sampled(folder, TRANSLATIONS, 3)) == 20
    with pytest.raises(ValueError, match="need sacremoses"):
        plain_bleu.add_scores(folder)


def test_without_a_packed_corpus_it_says_where_to_put_one(packed_alone):
    settings = TRANSLATE.effective("nah", "smoke", {**TINY, "words": 19})
    with pytest.raises(Missing, match=r"copy a packed corpus to .*data/packed/multi30k-19-words-50-long\.npz"):
        TRANSLATE.find_data(settings)
    with pytest.raises(Missing, match="europarl"):
        TRANSLATE.find_data(TRANSLATE.effective("nah", "paper"))


def test_plain_text_is_scored_elsewhere(tmp_path):
    pytest.importorskip("sacremoses")
    rows = [["a", "L'homme est là, dit-il.", "L&apos; homme est là , dit-il ."], ["b", "un chat noir dort", ""]]
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        before = {"experiment": "translate", "status": "finished", "result": {"test_bleu": 3.0}, "signature": {}}
        (tmp_path / name / "result.json").write_text(json.dumps(before))
    (tmp_path / "1" / "samples.json").write_text(json.dumps([{"title": TRANSLATIONS, "columns": [], "rows": rows}]))
    one, two = scoring.runs_in(tmp_path, "translate")
    plain_bleu.add_scores(one)
    after = json.loads((one / "result.json").read_text())
    # As 13a has it, all 6 tokens of the first line are right, and the 4 of the second are missing: exp(1 - 10 / 6).
    # Resampled, it is 100, this, or 0, each with a chance of 1, 2 and 1 quarters: the middle 95% are all of it.
    right = {PLAIN: pytest.approx(100 * math.exp(-2 / 3), abs=1e-4), PLAIN_INTERVAL: pytest.approx(50)}
    assert after["result"] == {"test_bleu": 3.0, **right}
    assert after["scored"]["sentences"] == 2
    assert "tok:13a" in after["scored"]["sacrebleu"]
    with pytest.raises(ValueError, match=f"has no table '{TRANSLATIONS}'"):
        plain_bleu.add_scores(two)
    answer = CliRunner().invoke(app, ["score", "translate", str(one)])
    assert (answer.exit_code, answer.stdout) == (0, f"{one}: {PLAIN} 51.34, {PLAIN_INTERVAL} 50.00\n")
    assert json.loads((one / "result.json").read_text()) == after
    answer = CliRunner().invoke(app, ["score", "mnist", str(one)])
    assert (answer.exit_code, "allowed are caption, caption-bias, translate" in answer.output) == (2, True)


@pytest.mark.gpu
@pytest.mark.parametrize("arm", ["reference", "nah"])
def test_graphs_do_what_the_steps_do(arm, packed_alone):
    found = []
    for as_graphs in (True, False):
        torch.manual_seed(3)
        task = Translate(TRANSLATE.effective(arm, "smoke", {**TINY, "tf32": False}), 0, torch.device("cuda"))
        if not as_graphs:
            task.step = task._step
        for index in range(20):
            task.update(index)
        found.append([weight.detach().cpu() for weight in task.model.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_a_beam_of_graphs_finds_what_one_on_the_cpu_does(packed_alone):
    changes = {**TINY, "tf32": False, "optimizer": "adam", "learning_rate": 0.02, "batch": 32}
    task = Translate(TRANSLATE.effective("nah", "smoke", changes), 0, torch.device("cuda"))
    for index in range(60):
        task.update(index)
    sentences = task.corpus.test.source_words * 4
    found = []
    for device in ("cuda", "cpu"):
        model = task.model.to(device)
        found.append(Translator(model, task.corpus.source, task.corpus.target, longest=8, batch=16).words(sentences))
    assert sum(a == b for a, b in zip(*found, strict=True)) >= 0.95 * len(sentences)  # but for ties

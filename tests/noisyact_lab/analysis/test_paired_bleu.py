"""Translations of two arms compared by paired bootstrap, on sentences whose BLEU is known by hand."""

import json

import pytest
from typer.testing import CliRunner

from noisyact_lab.analysis.paired_bleu import paired_bleu
from noisyact_lab.cli.app import app
from noisyact_lab.experiments.translate.adam import TRANSLATE_MULTI30K
from noisyact_lab.experiments.translate.task import TRANSLATIONS

pytest.importorskip("sacrebleu")
pytest.importorskip("sacremoses")


def write_run(folder, arm, seed, rows):
    run = folder / "translate-multi30k" / "short" / arm / f"seed-{seed}"
    run.mkdir(parents=True)
    record = {"experiment": "translate-multi30k", "status": "finished", "result": {}, "signature": {}}
    (run / "result.json").write_text(json.dumps(record))
    (run / "samples.json").write_text(json.dumps([{"title": TRANSLATIONS, "columns": [], "rows": rows}]))
    return run


def test_arms_are_compared_by_paired_bootstrap(tmp_path):
    lines = [f"un chien {letter} court dans le grand parc" for letter in "abcdefghijkl"]
    right = [["dog", line, line] for line in lines]
    wrong = [[*row[:2], row[2].replace("court", "dort")] for row in right]  # in every sentence
    once = [[*right[0][:2], "un chien"], *right[1:]]
    runs = [
        write_run(tmp_path, arm, seed, rows)
        for seed, arm, rows in (
            (0, "leak", wrong), (0, "nah", right), (0, "hard", wrong), (1, "nah", once), (1, "leak", right),
        )
    ]  # fmt: skip
    found = {(each.arm, each.against, each.seed): each for each in paired_bleu(TRANSLATE_MULTI30K, runs, TRANSLATIONS)}
    assert found.keys() == {("leak", "hard", "seed-0"), ("nah", "hard", "seed-0"), ("nah", "leak", "seed-0"),
                            ("nah", "leak", "seed-1")}  # fmt: skip
    better = found["nah", "leak", "seed-0"]
    # Of 8 words 7 are right, of 7 pairs 5, of 6 triples 3, of 5 fours 1.
    assert better.difference == pytest.approx(100 - 100 * (7 / 8 * 5 / 7 * 3 / 6 * 1 / 5) ** 0.25, abs=1e-3)
    assert better.p < 0.01
    assert better.corrected == pytest.approx(3 * better.p)  # the least of three
    assert "bs:1000|seed:12345" in better.signature
    assert found["leak", "hard", "seed-0"].p == 1.0  # the same translations
    assert found["nah", "leak", "seed-1"].difference < 0
    assert found["nah", "leak", "seed-1"].p > 0.05  # one sentence of twelve
    answer = CliRunner().invoke(app, ["score", "translate-multi30k", str(tmp_path)])
    assert answer.exit_code == 0
    assert "nah - leak" in answer.stdout
    answer = CliRunner().invoke(app, ["score", "translate-multi30k", str(tmp_path), "--json"])
    assert len(json.loads(answer.stdout)["paired_bootstrap"]) == 4
    other = write_run(tmp_path, "nan", 1, right[1:])
    with pytest.raises(ValueError, match="have translated different sentences"):
        paired_bleu(TRANSLATE_MULTI30K, [*runs, other], TRANSLATIONS)

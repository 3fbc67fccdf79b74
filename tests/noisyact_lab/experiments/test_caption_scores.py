"""BLEU and METEOR of captions worked out by hand, records that get them, and machines without Java."""

import json
import math
import shutil

import pytest

from noisyact_lab.analysis import scoring
from noisyact_lab.engine.folder.files import write_json
from noisyact_lab.experiments.caption import scores
from noisyact_lab.experiments.caption.caption import CAPTIONS, SCORED

pytest.importorskip("pycocoevalcap")
JAVA = not scores.why_no_meteor()


@pytest.fixture(name="no_java")
def _no_java(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)


def test_a_caption_like_its_reference_has_all_of_bleu(no_java):
    found = scores.score({"a": "a dog runs over grass"}, {"a": ["a dog runs over grass"]})
    for n in range(1, 5):
        assert found.values[f"bleu_{n}"] == pytest.approx(100.0)


def test_bleu_by_hand(no_java):
    """Of "a a dog runs fast": words a (once, as in the reference), dog, runs; pairs "a dog", "dog runs"; one triple."""
    found = scores.score({"a": "a a dog runs fast"}, {"a": ["a dog runs away now", "cats"]}).values
    precisions = [3 / 5, 2 / 4, 1 / 3]
    for n in range(1, 4):
        assert found[f"bleu_{n}"] == pytest.approx(100 * math.prod(precisions[:n]) ** (1 / n))
    assert found["bleu_4"] < 0.1


def test_a_short_caption_pays_for_it(no_java):
    """Three words of a reference of five: exp(1 - 5 / 3); the reference of nearest length counts."""
    found = scores.score({"a": "a dog runs"}, {"a": ["a dog runs over grass", "x " * 20]}).values
    assert found["bleu_1"] == pytest.approx(100 * math.exp(1 - 5 / 3))


def test_bleu_counts_over_all_images(no_java):
    """1 of 1 and 1 of 3 words are 2 of 4, not the mean of 1 and 1/3."""
    found = scores.score({"a": "dog", "b": "dog x y"}, {"a": ["dog"], "b": ["dog z w"]}).values
    assert found["bleu_1"] == pytest.approx(50.0)


@pytest.mark.skipif(not JAVA, reason=scores.why_no_meteor())
def test_meteor_by_hand():
    """Two content words, 0.75 each, match by their stems, which counts 0.6; "a", a function word, 0.25, exactly; all
    in order, so nothing is taken off: (2 * 0.75 * 0.6 + 0.25) / (2 * 0.75 + 0.25)."""
    found = scores.score({"a": "a dogs barking"}, {"a": ["a dog barks"]})
    assert found.values["meteor"] == pytest.approx(100 * 1.15 / 1.75)
    assert found.values["bleu_1"] == pytest.approx(100 / 3)
    assert found.missing == ""
    assert found.signature["java"]


def test_without_java_meteor_says_so_and_bleu_comes(no_java):
    found = scores.score({"a": "a dog"}, {"a": ["a dog"]})
    assert "meteor" not in found.values
    assert found.values["bleu_1"] == pytest.approx(100.0)
    assert "METEOR needs Java 11 or newer, and there is no java here" in found.missing
    assert found.signature["java"] is None


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'java version \"1.8.0_202\"' >&2", "the java here is 1.8.0_202"),
        ("exit 3", "the java here does not run"),
        ("echo nothing", "the java here does not run"),
    ],
)
def test_a_java_that_will_not_do_is_named(tmp_path, monkeypatch, script, said):
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert said in scores.why_no_meteor()


def test_a_meteor_that_fails_leaves_bleu(tmp_path, monkeypatch):
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.1"\' >&2\nexit 0\n')
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = scores.score({"a": "a dog"}, {"a": ["a dog"]})
    assert found.missing.startswith("METEOR failed")
    assert found.values.keys() == {"bleu_1", "bleu_2", "bleu_3", "bleu_4"}


def test_bad_input():
    with pytest.raises(ValueError, match="no caption to score"):
        scores.score({}, {})
    with pytest.raises(ValueError, match="1 of 2 images have no reference, such as 'b'"):
        scores.score({"a": "x", "b": "y"}, {"a": ["x"], "b": []})


def record(folder, **changed):
    value = {
        "experiment": "caption", "status": "finished", "result": {"test_nll": 1.5, "meteor": 9.0},
        "signature": {"torch": "x"}, **changed,
    }  # fmt: skip
    folder.mkdir(parents=True)
    write_json(folder / "result.json", value)
    rows = [["a", "a dog", "by people"], ["b", "", "by people"]]
    write_json(folder / "samples.json", [{"title": CAPTIONS, "columns": ["image", "caption", "x"], "rows": rows}])
    return value


def test_scores_are_added_to_a_record_and_the_rest_stays(tmp_path, no_java):
    before = record(tmp_path / "run")
    references = {"a": ["a dog"], "b": ["a cat runs"], "c": ["not asked for"]}
    found = scores.add_scores(tmp_path / "run", references)
    after = json.loads((tmp_path / "run" / "result.json").read_text())
    assert after["result"] == {"test_nll": 1.5, **found.values}  # a METEOR of other captions does not stay
    assert after["scored"]["images"] == 2
    assert after["scored"]["pycocoevalcap"]
    assert {name: after[name] for name in ("experiment", "status", "signature")} == {
        name: before[name] for name in ("experiment", "status", "signature")
    }
    scores.add_scores(tmp_path / "run", references)
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == after
    other = scores.score({"a": "a cat", "b": ""}, references)
    assert other.signature["text_sha256"] != after["scored"]["text_sha256"]


def test_finished_runs_of_captions_are_found(tmp_path):
    for name, changed in {"1": {}, "2": {"status": "diverged"}, "3": {"experiment": "mnist"}, "4": {}}.items():
        record(tmp_path / "runs" / name, **changed)
    assert scoring.runs_in(tmp_path, "caption") == [tmp_path / "runs" / "1", tmp_path / "runs" / "4"]
    assert scoring.runs_in(tmp_path / "runs" / "4", "caption") == [tmp_path / "runs" / "4"]
    with pytest.raises(ValueError, match="no finished run of 'caption'"):
        scoring.runs_in(tmp_path / "runs" / "2", "caption")
    with pytest.raises(ValueError, match="there is no such folder"):
        scoring.runs_in(tmp_path / "elsewhere", "caption")


def test_a_run_keeps_its_scores_where_its_captions_are_gone(tmp_path):
    record(tmp_path / "run")
    assert scoring.scored_before(tmp_path / "run", SCORED) is None
    given = scoring.Scores({"bleu_1": 50.0, "meteor": 20.0}, {"pycocoevalcap": "1.2"})
    scoring.put_scores(tmp_path / "run", given, SCORED)
    assert scoring.scored_before(tmp_path / "run", SCORED) is None  # they can be had again
    (tmp_path / "run" / "samples.json").unlink()
    before = scoring.scored_before(tmp_path / "run", SCORED)
    assert before is not None
    assert (before.values, before.signature) == (given.values, given.signature)
    assert "keep the scores they had" in before.missing


def test_a_run_without_captions_is_named(tmp_path):
    record(tmp_path / "run")
    (tmp_path / "run" / "samples.json").unlink()
    with pytest.raises(ValueError, match=f"has no table '{CAPTIONS}'"):
        scores.add_scores(tmp_path / "run", {})

"""The effects of leak and noise from the committed records, the sentences about them, and their figure."""

import dataclasses
import json
import random
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from scipy import stats

from noisyact_lab.analysis.effects import KINDS, SATURATED_START, Unit, effects_of, saturated_start
from noisyact_lab.analysis.findings import findings, limits, plateau_tests
from noisyact_lab.analysis.results_table import table_of
from noisyact_lab.experiments.ptb_word import PTB_WORD
from noisyact_lab.report.forest import forest

RESULTS = Path(__file__).parents[3] / "results"


@pytest.fixture(scope="module")
def effects():
    return effects_of(RESULTS)


def one(effects, experiment, kind, arm):
    (found,) = (e for e in effects if (e.experiment, e.kind, e.arm) == (experiment, kind, arm))
    return found


def recorded(arm, metric="test_perplexity", experiment="ptb-word"):
    folders = sorted((RESULTS / experiment / "paper" / arm).glob("seed-*"))
    return {f.name: json.loads((f / "result.json").read_text())["result"][metric] for f in folders}


def test_an_effect_is_the_paired_difference_in_per_cent(effects):
    leak, hard = recorded("leak"), recorded("hard")
    differences = [leak[seed] - hard[seed] for seed in leak]
    test = stats.ttest_rel(list(leak.values()), list(hard.values()))
    base = sum(hard.values()) / len(hard)
    found = one(effects, "ptb-word", "leak", "leak")
    assert (found.seeds, found.base) == (5, pytest.approx(base))
    assert found.difference == pytest.approx(sum(differences) / 5)
    assert found.estimate == pytest.approx(-100 * found.difference / base)  # a lower perplexity is better
    low, high = test.confidence_interval()
    assert (found.low, found.high) == pytest.approx((-100 * high / base, -100 * low / base))
    assert found.p == pytest.approx(test.pvalue)
    # Higher is better in BLEU, and a task that is solved is judged by its time.
    bleu, updates = one(effects, "translate", "leak", "leak"), one(effects, "unique", "leak", "leak")
    assert (bleu.metric, bleu.difference > 0, bleu.estimate > 0) == ("test_bleu", True, True)
    assert updates.metric == "updates_to_1%"


def test_holm_is_over_all_of_them(effects):
    known = sorted((e for e in effects if e.p is not None), key=lambda e: e.p)
    assert known[0].holm == pytest.approx(len(known) * known[0].p)
    assert known[-1].holm == 1.0
    assert all(e.holm is None and e.low is None for e in effects if e.p is None)
    assert all(e.low is None or e.pooled for e in effects if e.seeds < 3)


def test_arms_are_compared_with_what_they_differ_from_in_one_thing(effects):
    pairs = {(e.experiment, e.kind, e.arm, e.against) for e in effects}
    assert {
        ("ptb-word", "no leak", "nah-no-leak", "hard"), ("mixture", "no leak", "nan", "hard"),
        ("mixture", "on leak", "nan-leak", "leak"), ("caption", "input", "nani-lstm", "hard-lstm"),
        ("ptb-word, dropout=0.25", "on leak", "nan", "leak"), ("saturated start", "on mean", "NAH", "NAH, mean"),
    } <= pairs  # fmt: skip
    assert not any("curriculum" in arm or "no-dropout" in arm or "reference" in arm for _, _, arm, _ in pairs)
    assert [e.kind for e in effects] == sorted((e.kind for e in effects), key=list(KINDS).index)
    centred = Unit("nah", (1.15,), draw="centred")
    assert centred.kind_against(Unit("nan", (1.15,), noisy=False)) == "centred"
    assert centred.kind_against(Unit("nan", (1.1,), noisy=False)) is None


def test_the_sentences_have_the_numbers_of_the_records(effects):
    said = findings(effects)
    leak, on_leak, no_leak, mean, randomness = (found.sentence for found in said[:5])
    at_input = said[-1].sentence
    with_interval = [e for e in effects if e.low is not None]
    rows = [e for e in with_interval if e.kind == "leak"]
    better, worse = sum(e.low > 0 for e in rows), sum(e.high < 0 for e in rows)
    assert f"better in {better} and worse in {worse} of {len(rows)} comparisons" in leak
    on_top = [e for e in with_interval if e.kind == "on leak"]
    better, corrected = sum(e.low > 0 for e in on_top), sum(e.low > 0 and e.holm < 0.05 for e in on_top)
    assert (better, corrected) == (1, 1)
    assert f"better in 1 of {len(on_top)} comparisons by their 95% intervals; one remains after Holm" in on_leak
    assert "correction: nan-annealed in unique-plateau. It changes the words' perplexity by" in on_leak
    assert "0.04 ± 0.99 (nan)" in on_leak
    assert "where the model has dropout by" in leak
    assert ("was not tested" in no_leak) == (not any(e.arm == "nah-no-leak-mean" for e in effects))
    assert "the mean of half-normal noise is enough" in mean
    assert "NANIS in saturated start" in at_input
    more = [e for e in with_interval if e.kind == "on mean"]
    assert not any(e.clear for e in more)
    assert f"told apart from no change in none of {len(more)} comparisons. So draw=" in randomness
    assert all(found.sections for found in said)
    few = sum(e.seeds < 3 for e in effects)
    assert limits(effects).startswith(f"{len(effects)} effects")
    assert f"{few} have fewer than 3 seeds" in limits(effects)


def test_recall_drew_hardly_any_noise(effects):
    """As the caption says: with constant noise less than 1% of the controller saturates until the task is solved."""
    assert "In recall the controller hardly saturates" in limits(effects)
    for folder in (RESULTS / "recall" / "paper" / "nan").glob("seed-*"):
        solved = json.loads((folder / "result.json").read_text())["result"]["updates_to_1%"]
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert max(line["saturated"] for line in lines if line["update"] <= solved) < 1


def test_the_sentences_follow_the_numbers(effects):
    """With randomness that counts, and with noise that helps, they say the opposite."""
    changed = [
        dataclasses.replace(e, low=1.0, high=2.0, holm=0.001) if e.kind in ("on mean", "on leak") else e
        for e in effects
    ]
    _, on_leak, _, mean, randomness = (found.sentence for found in findings(changed)[:5])
    assert "is not all" in mean
    assert "remain after Holm" in randomness
    assert "draw=" not in randomness
    count = sum(e.kind == "on leak" for e in effects)
    assert f"better in {count} of {count}" in on_leak
    assert findings([]) == []
    assert "was not tested" not in "".join(
        f.sentence for f in findings([e for e in effects if e.experiment == "mnist"])
    )


@pytest.fixture
def parts(tmp_path):
    """The effects in made-up records of the arms that tell leak, mean and randomness apart.

    The leak gains 6 perplexities, 4 of them on the gates; without it the mean of the noise gains 2, and its randomness
    costs 1. On the plateau the mean saves 9,000 updates where c is constant and 12,000 where it is annealed.
    """
    words = {
        "hard": 114.0, "leak": 108.0, "leak-gates": 110.0, "leak-tanhs": 112.0, "leak-unclipped": 108.5, "nan": 108.0,
        "nah": 107.5, "nah-mean": 107.0, "nah-centred": 108.2, "nah-no-leak": 113.0, "nah-no-leak-mean": 112.0,
        "nah-no-leak-centred": 115.0, "nah-no-leak-fixed-p": 113.5, "nan-no-leak": 115.0,
    }  # fmt: skip
    updates = {
        "hard": 30_000.0, "leak": 24_000.0, "nah": 21_000.0, "nah-mean": 21_000.0, "nah-no-leak": 21_500.0,
        "nah-no-leak-mean": 21_000.0, "nah-no-leak-mean-annealed": 18_000.0, "nah-no-leak-annealed": 19_000.0,
    }  # fmt: skip
    chance = random.Random(0)
    put(tmp_path, "ptb-word", "test_perplexity", 1.0, words, chance)
    put(tmp_path, "unique-plateau", "updates_needed", 1000.0, updates, chance)
    return effects_of(tmp_path)


@pytest.fixture
def annealed(tmp_path):
    """Made-up records of ten seeds of the arms that the sentence on the plateau is about.

    All annealed arms are done in half of the time of the others, and sampled noise is as soon as its mean.
    """
    slow, soon = dict.fromkeys(("reference", "hard", "leak", "nan"), 28_000.0), 12_000.0
    quick = ("nan-annealed", "nan-no-leak-annealed", "nah-no-leak-annealed", "nah-no-leak-mean-annealed")
    put(tmp_path, "unique-plateau", "updates_needed", 1000.0, slow | dict.fromkeys(quick, soon), random.Random(0), 10)
    return tmp_path


def put(out, experiment, metric, scale, means, chance, seeds=5):
    for arm, mean in means.items():
        for seed in range(seeds):
            folder = out / experiment / "paper" / arm / f"seed-{seed}"
            folder.mkdir(parents=True)
            value = mean + scale * (seed + chance.uniform(-0.3, 0.3))
            result = {metric: value} | ({"updates_to_1%": value} if metric == "updates_needed" else {})
            record = {"status": "finished", "updates": 50_000, "result": result}
            (folder / "result.json").write_text(json.dumps(record))


def test_leak_mean_and_randomness_are_told_apart(parts):
    found = {(e.experiment, e.kind, e.arm, e.against): e for e in parts}
    words = {key[1:] for key in found if key[0] == "ptb-word"}
    assert words == {
        ("leak", "leak", "hard"), ("leak", "leak-unclipped", "hard"), ("part leak", "leak-gates", "hard"),
        ("part leak", "leak-tanhs", "hard"), ("on leak", "nan", "leak"), ("on leak", "nah", "leak"),
        ("no leak", "nah-no-leak", "hard"), ("no leak", "nan-no-leak", "hard"), ("mean", "nah-mean", "leak"),
        ("mean", "nah-no-leak-mean", "hard"), ("centred", "nah-centred", "leak"),
        ("centred", "nah-no-leak-centred", "hard"), ("on mean", "nah", "nah-mean"),
        ("on mean", "nah-no-leak", "nah-no-leak-mean"),
    }  # fmt: skip
    assert found["ptb-word", "mean", "nah-no-leak-mean", "hard"].difference == pytest.approx(-2, abs=0.4)
    assert found["ptb-word", "on mean", "nah-no-leak", "nah-no-leak-mean"].difference == pytest.approx(1, abs=0.4)
    assert found["ptb-word", "mean", "nah-no-leak-mean", "hard"].clear
    # An annealed arm is compared with an annealed one.
    plateau = {key[1:] for key in found if key[0] == "unique-plateau" and key[1] == "on mean"}
    assert plateau == {
        ("on mean", "nah", "nah-mean"), ("on mean", "nah-no-leak", "nah-no-leak-mean"),
        ("on mean", "nah-no-leak-annealed", "nah-no-leak-mean-annealed"),
    }  # fmt: skip
    assert ("unique-plateau", "mean", "nah-no-leak-mean-annealed", "hard") in found
    assert "The leak in some of the units only" in forest(parts)


def test_two_runs_on_the_plateau_are_no_evidence(effects, tmp_path):
    """Also not where the variances could be pooled: times that a budget cuts off are not normal."""
    updates = {"hard": 30_000.0, "leak": 24_000.0, "nah": 21_000.0, "nah-mean": 21_000.0}
    for seeds in (2, 3):
        put(tmp_path / str(seeds), "unique-plateau", "updates_needed", 1000.0, updates, random.Random(0), seeds)
    assert effects_of(tmp_path / "2") == []
    assert {(e.arm, e.against) for e in effects_of(tmp_path / "3")} == {
        ("leak", "hard"), ("nah", "leak"), ("nah-mean", "leak"), ("nah", "nah-mean")
    }  # fmt: skip


def test_units_saturate_where_the_parts_are_told_apart():
    """In the arms that tell mean and randomness apart, at least 40% of each sigmoid and candidate draws noise."""
    for arm in ("nah-mean", "nah-centred", "nah-no-leak-mean", "nah-no-leak-centred", "nan-no-leak"):
        (row,) = table_of(PTB_WORD, RESULTS, "paper", [arm]).rows
        gates = {unit: numbers for unit, numbers in row.noise.items() if not unit.endswith(".c")}
        assert len(gates) == 8
        assert all(numbers["drawn"] > 0.4 and numbers["sigma"] > 0 for numbers in gates.values())
        assert not row.hardly_drawn


def test_the_sentences_say_the_parts(parts):
    leak, on_leak, no_leak, randomness = (found.sentence for found in findings(parts))
    shown = {(e.experiment, e.kind, e.arm): e.shown for e in parts}
    assert leak.startswith("The leak alone, against the hard function, is better in 3 of 3")
    assert f"Of nah its mean alone changes it by {shown['ptb-word', 'mean', 'nah-mean']} (5 seeds" in on_leak
    assert "(nah-no-leak; 5 seeds, Holm p" in no_leak
    assert f"its mean alone changes it by {shown['ptb-word', 'mean', 'nah-no-leak-mean']} (5 seeds" in no_leak
    assert f"its randomness alone by {shown['ptb-word', 'centred', 'nah-no-leak-centred']} (5 seeds" in no_leak
    assert f"on top of the mean by {shown['ptb-word', 'on mean', 'nah-no-leak']} (5 seeds" in no_leak
    assert "was not tested" not in no_leak
    assert randomness.startswith("Randomness on top of the noise's mean is ")


def test_effects_on_times_have_the_log_rank_test_of_the_table(effects):
    declared = {(t.comparison.arm, t.comparison.against): t.p for t in plateau_tests(RESULTS)}
    timed = [e for e in effects if e.log_rank]
    assert {e.experiment for e in timed} == {"unique-plateau"}
    assert sum((e.arm, e.against) in declared for e in timed) > 5
    assert all(e.p == declared.get((e.arm, e.against), e.p) for e in timed)
    assert "in unique-plateau that of a log-rank test" in limits(effects)
    assert "log-rank" not in limits([e for e in effects if not e.log_rank])


def test_the_sentence_on_the_plateau_has_the_tests_of_its_table(effects, annealed):
    said = findings(effects, plateau_tests(RESULTS))[0]
    assert {e.experiment for e in said.effects} == {"unique-plateau"}
    needed = recorded("nan-annealed", "updates_needed", "unique-plateau")
    assert len(needed) == 10
    assert f"nan-annealed needs {sum(needed.values()) / 10:,.0f} updates on average, sooner than ref" in said.sentence
    assert "sampled noise is sooner than its mean in none of 4 pairs (smallest p = 0.38)" in said.sentence
    assert "corrected for its 16 comparisons" in said.sentence
    # What is not told apart is not called sooner, and without its tests the sentence is left out.
    made_up = findings(effects_of(annealed), plateau_tests(annealed))[0].sentence
    assert "sooner than its mean in none of 1 pair (smallest p = 1)" in made_up
    for seed in range(10):
        slow, quick = (
            annealed / "unique-plateau" / "paper" / arm / f"seed-{seed}" / "result.json"
            for arm in ("leak", "nan-annealed")
        )
        quick.write_text(slow.read_text())
    changed = findings(effects_of(annealed), plateau_tests(annealed))[0].sentence
    assert "updates on average, not told apart from reference (" in changed
    assert "nan-no-leak-annealed needs 16," in changed
    assert not any("(unique-plateau;" in found.sentence for found in findings(effects))


def test_a_record_that_is_none_is_refused(tmp_path):
    path = tmp_path / SATURATED_START
    for text in ('{"arms": [{"name": "a", "scheme": null, "test_error": ["x"]}]}', '{"arms": [{"name": "a"}]}',
                 '{"arms": [{"name": "a", "scheme": "nap", "test_error": [1]}]}'):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ValueError, match=r"saturated_start\.json is not a record"):
            saturated_start(path)
    assert effects_of(tmp_path / "nothing") == []


def test_the_figure_has_each_effect_once(effects):
    text = forest(effects, page="")
    root = ET.fromstring(text)
    assert float(ET.fromstring(forest(effects, narrow=True)).get("width")) == 360
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f".//{space}a")) == len(effects)
    assert len(root.findall(f".//{space}circle")) == sum(abs(e.estimate) <= 130 for e in effects)
    assert len(root.findall(f".//{space}path")) == sum(e.low is not None for e in effects)
    filled = [g for g in root.findall(f".//{space}g") if g.get("class") == "clear"]
    assert len(filled) == sum(e.clear for e in effects)
    assert "<a " not in forest(effects)
    odd = dataclasses.replace(effects[0], experiment="<b>&")
    assert "<b>" not in forest([odd], page="")
    assert re.search(r"prefers-color-scheme: dark", text)

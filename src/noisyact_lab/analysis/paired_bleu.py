"""Two arms of one seed compared by their translations of the same sentences: sacrebleu's paired bootstrap.

The sentences of the test set are drawn anew a thousand times. p is the share of draws in which the difference is as far
from its mean as the measured difference is from 0 (Koehn 2004). It is about these two models and sentences like those
of the test set, where the comparison over seeds is about the arms.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from noisyact.text_table import text_table, wrapped
from noisyact_lab.analysis.scoring import sampled
from noisyact_lab.analysis.statistics.differences import holm
from noisyact_lab.data import moses
from noisyact_lab.data.packed import LANGUAGES
from noisyact_lab.engine.experiment import Comparison, Experiment

__all__ = ["PairedBleu", "as_text", "paired_bleu"]

_RESAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class PairedBleu:
    """BLEU of plain text of one arm less that of another, of one seed.

    Args:
        arm: the one whose score is on the left of the difference.
        against: the other.
        seed: the name of the folder of both runs.
        difference: of the scores.
        p: of the paired bootstrap.
        corrected: with Holm's correction for all comparisons of this seed.
        signature: sacrebleu's.
    """

    arm: str
    against: str
    seed: str
    difference: float
    p: float
    corrected: float
    signature: str


def paired_bleu(experiment: Experiment, runs: Sequence[Path], title: str) -> list[PairedBleu]:
    """Make the experiment's comparisons within each seed, for the runs that have kept their translations.

    Args:
        experiment: an experiment of translation, whose family of comparisons is made.
        runs: folders of finished runs, `.../arm/seed-N`.
        title: of the table, among a run's samples, of the sources, references and translations as Moses' words.
    """
    kept = sorted((run for run in runs if (run / "samples.json").exists()), key=_group)
    found = []
    for (_, seed), group in itertools.groupby(kept, key=_group):
        texts = {run.parent.name: sampled(run, title, 3) for run in group}
        about = [each for each in experiment.family() if {each.arm, each.against} <= texts.keys() and not each.metric]
        found += _of_seed(seed, about, texts)
    return found


def _group(run: Path) -> tuple[str, str]:
    """What runs that are compared have in common: all but the arm."""
    return str(run.parent.parent), run.name


def _of_seed(seed: str, about: Sequence[Comparison], texts: Mapping[str, list[list[str]]]) -> list[PairedBleu]:
    """Make comparisons of arms, each with its rows of source, reference and translation."""
    tests = [_test(texts[each.against], texts[each.arm]) for each in about]
    return [
        PairedBleu(each.arm, each.against, seed, difference, p, corrected, signature)
        for each, (difference, p, signature), corrected in zip(
            about, tests, holm([p for _, p, _ in tests]), strict=True
        )
    ]


def _test(baseline: Sequence[Sequence[str]], system: Sequence[Sequence[str]]) -> tuple[float, float, str]:
    """The difference of BLEU from the baseline, its p, and the signature."""
    from sacrebleu import BLEU
    from sacrebleu.significance import PairedTest, Result

    references = [row[1] for row in baseline]
    if references != [row[1] for row in system]:
        raise ValueError("two runs of one seed have translated different sentences")
    systems: list[tuple[str, Sequence[str]]] = [
        (name, moses.detokenised((row[2].split(" ") for row in rows), LANGUAGES[1]))
        for name, rows in (("baseline", baseline), ("system", system))
    ]
    signatures, scores = PairedTest(systems, {"BLEU": BLEU(force=True)}, [references], "bs", _RESAMPLES)()
    first, second = (result for result in scores["BLEU"] if isinstance(result, Result))
    # Of equal scores sacrebleu says p = 1 / 1001: no resampled difference of 0 is larger than 0.
    p = float(second.p_value or 0.0) if second.score != first.score else 1.0
    return round(second.score - first.score, 6), p, str(signatures["BLEU"])


def as_text(found: Sequence[PairedBleu], width: int | None) -> str:
    """A table of the comparisons, and how they were made, in lines of at most `width` where one is given."""
    said = (
        f"Paired bootstrap of BLEU of plain text, by seed: it is about these models and not about other seeds. Holm: p "
        f"corrected for the comparisons of one seed. {found[0].signature}"
    )
    rows = [
        [f"{each.arm} - {each.against}", each.seed, f"{each.difference:+.2f}", f"{each.p:.3f}", f"{each.corrected:.3f}"]
        for each in found
    ]
    return f"{wrapped(said, width)}\n\n{text_table(['comparison', 'seed', 'difference', 'p', 'Holm'], rows, width)}"

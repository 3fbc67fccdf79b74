"""What the effects of all experiments say, in sentences whose numbers and verdicts are computed from the records.

A sentence is left out if the records lack what it is about. Its words depend on the numbers: where an interval contains
no change, it says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from noisyact_lab.analysis.comparisons import Compared
from noisyact_lab.analysis.effects import Effect
from noisyact_lab.analysis.estimates import short
from noisyact_lab.analysis.results_table import table_of
from noisyact_lab.engine.experiment import load_experiment

__all__ = ["Finding", "findings", "limits", "plateau_tests"]

_WORDS, _SATURATED, _PLATEAU = "ptb-word", "saturated start", "unique-plateau"
_DROPOUT = ("ptb-word, dropout=0.25", "ptb-word-medium")
"""The word models that have dropout: the small one, and the medium one."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """A sentence, and the effects that it is about: its evidence is in their sections."""

    sentence: str
    effects: tuple[Effect, ...]

    @property
    def sections(self) -> dict[str, str]:
        """The ids of the sections with the evidence, and the names of their experiments."""
        return {effect.section: effect.experiment for effect in self.effects}


def findings(effects: Sequence[Effect], on_plateau: Sequence[Compared] = ()) -> list[Finding]:
    """The sentences about the effects, as far as there are effects for them.

    Args:
        effects: of all experiments.
        on_plateau: the comparisons that :func:`plateau_tests` returns.
    """
    found = [write(effects) for write in (_leak, _on_leak, _no_leak, _mean, _randomness, _input)]
    return [finding for finding in (_plateau(effects, on_plateau), *found) if finding is not None]


def plateau_tests(out: Path, preset: str = "paper") -> tuple[Compared, ...]:
    """The comparisons that were declared for the task that begins on a plateau, corrected in their own table."""
    return table_of(load_experiment(_PLATEAU), out, preset).comparisons


def limits(effects: Sequence[Effect]) -> str:
    """What is to be said of all of them: the family, and how many rest on few seeds."""
    tested = sum(effect.holm is not None for effect in effects)
    few = sum(effect.seeds < 3 for effect in effects)
    timed = dict.fromkeys(effect.experiment for effect in effects if effect.log_rank)
    recall = any(effect.experiment == "recall" and effect.kind == "on leak" for effect in effects)
    return (
        f"{len(effects)} effects; Holm's correction is over the {tested} that have a p-value. {few} have fewer than 3 "
        "seeds: they have an interval (*) only where the variance can be pooled over the arms. That an effect is not "
        "told apart from no change does not show that there is none."
        + f" p is that of a paired t-test, and in {' and '.join(timed)} that of a log-rank test." * bool(timed)
        + " In recall the controller hardly saturates, so hardly any noise was drawn there." * recall
    )


def _of(effects: Sequence[Effect], kind: str, experiment: str = "") -> list[Effect]:
    return [effect for effect in effects if effect.kind == kind and experiment in ("", effect.experiment)]


def _counted(effects: Sequence[Effect]) -> str:
    """How many intervals are on either side of no change, and how many remain after the correction."""
    better, worse = sum(effect.better for effect in effects), sum(effect.worse for effect in effects)
    if not better + worse:
        return f"told apart from no change in none of {len(effects)} comparisons"
    clear = sum(effect.clear for effect in effects)
    sides = " and ".join(f"{side} in {n}" for side, n in (("better", better), ("worse", worse)) if n)
    left = {0: "none remains", 1: "one remains"}.get(clear, f"{clear} remain")
    return f"{sides} of {len(effects)} comparisons by their 95% intervals; {left} after Holm's correction"


def _which(effects: Sequence[Effect]) -> str:
    """The names of those that remain after the correction."""
    clear: dict[str, list[str]] = {}
    for effect in effects:
        if effect.clear:
            clear.setdefault(effect.experiment, []).append(effect.arm)
    said = "; ".join(f"{' and '.join(arms)} in {experiment}" for experiment, arms in clear.items())
    return f": {said}" if said else ""


def _leak(effects: Sequence[Effect]) -> Finding | None:
    rows = _with_interval(_of(effects, "leak"))
    if not rows:
        return None
    text = f"The leak alone, against the hard function, is {_counted(rows)}"
    plain, dropped = _of(rows, "leak", _WORDS)[:1], [e for name in _DROPOUT for e in _of(rows, "leak", name)]
    if plain and dropped:
        told = " and ".join(f"{e.shown} ({e.experiment}; {e.evidence})" for e in dropped)
        text += (
            f". It changes the perplexity of the Penn Treebank's words by {plain[0].shown} ({plain[0].evidence}), and "
            f"where the model has dropout by {told}"
        )
    return Finding(f"{text}.", rows)


def _on_leak(effects: Sequence[Effect]) -> Finding | None:
    rows = _with_interval(_of(effects, "on leak"))
    if not rows:
        return None
    text = f"Noise on top of the leak is {_counted(rows)}{_which(rows)}"
    words = [e for e in rows if e.experiment == _WORDS]
    if words:
        told = " and by ".join(f"{e.shown} ({e.arm})" for e in words)
        room = " and ".join(f"{max(0.0, -e.interval[0]):.2g}" for e in words if e.interval)
        text += f". It changes the words' perplexity by {told}, which leaves room for a gain of {room}"
    said, parts = _in_parts(effects, "nah")
    return Finding(f"{text}{said}.", (*rows, *parts))


def _no_leak(effects: Sequence[Effect]) -> Finding | None:
    rows = _with_interval(_of(effects, "no leak"))
    if not rows:
        return None
    text = f"Noise without a leak, against the hard function, is {_counted(rows)}{_which(rows)}"
    words = _of(effects, "no leak", _WORDS)
    said, parts = _in_parts(effects, "nah-no-leak")
    if words:
        told = " and by ".join(f"{e.shown} ({e.arm}; {e.evidence})" for e in words)
        text += f". It changes the words' perplexity by {told}"
        text += said or "; whether its mean or its randomness does that was not tested"
    return Finding(f"{text}.", (*rows, *parts))


def _in_parts(effects: Sequence[Effect], arm: str) -> tuple[str, list[Effect]]:
    """What the mean and the randomness of an arm's noise do in the word model, as far as both were tested."""
    wanted = (("mean", f"{arm}-mean"), ("centred", f"{arm}-centred"), ("on mean", arm))
    found = [next((e for e in _of(effects, kind, _WORDS) if e.arm == name), None) for kind, name in wanted]
    parts = [effect for effect in found if effect is not None]
    if len(parts) < len(wanted):
        return "", []
    mean, alone, more = (f"{effect.shown} ({effect.evidence})" for effect in parts)
    return (
        f". Of {arm} its mean alone changes it by {mean}, its randomness alone by {alone}, and its randomness on top "
        f"of the mean by {more}",
        parts,
    )


def _randomness(effects: Sequence[Effect]) -> Finding | None:
    """Whether a sample of the noise does anything that its mean does not, anywhere."""
    rows = _with_interval(_of(effects, "on mean"))
    if not rows:
        return None
    text = f"Randomness on top of the noise's mean is {_counted(rows)}{_which(rows)}"
    if not any(effect.clear and effect.better for effect in rows):
        text += '. So draw="mean", which draws no random numbers, is the first choice for half-normal noise'
    return Finding(f"{text}.", rows)


def _plateau(effects: Sequence[Effect], tests: Sequence[Compared]) -> Finding | None:
    """What annealed noise does where the reference is stuck for long, by the log-rank tests declared beforehand."""
    rows = tuple(effect for effect in effects if effect.experiment == _PLATEAU)
    known = {(each.comparison.arm, each.comparison.against): each for each in tests if each.corrected is not None}
    wanted = (
        *(("nan-annealed", against) for against in ("reference", "leak", "nan")),
        *((arm, "hard") for arm in ("nan-no-leak-annealed", "nah-no-leak-mean-annealed")),
    )
    sampled = [each for (arm, against), each in known.items() if against != arm == against.replace("-mean", "")]
    if not (rows and sampled and all(pair in known for pair in wanted)):
        return None
    *annealed, noise, mean = (known[pair] for pair in wanted)
    text = (
        f"Where the soft network sits on a plateau ({_PLATEAU}; updates to 1% test error), {_reached(annealed)}. "
        f"Without a leak, {_reached([noise])}. Without leak and randomness, {_reached([mean])}. "
    )
    family = f"These are the log-rank tests of its table, corrected for its {len(known)} comparisons"
    return Finding(f"{text}{_sampled(sampled)}. {family}.", rows)


def _reached(tests: Sequence[Compared]) -> str:
    """When an arm is at the threshold, and which arms it is sooner or later than, or not told apart from."""
    others: dict[str, list[str]] = {}
    for each in tests:
        name = f"{each.comparison.against} ({_updates(each, 1)}; Holm p {_holm(each)})"
        others.setdefault(_verdict(each), []).append(name)
    said = " and ".join(f"{verdict} {_joined(names)}" for verdict, names in others.items())
    return f"{tests[0].comparison.arm} needs {_updates(tests[0], 0)} updates on average, {said}"


def _joined(names: Sequence[str]) -> str:
    """
    >>> _joined(["leak"]), _joined(["reference", "leak", "nan"])
    ('leak', 'reference, leak and nan')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _updates(each: Compared, arm: int) -> str:
    return f"{each.survival.means[arm]:,.0f}" if each.survival else ""


def _sampled(tests: Sequence[Compared]) -> str:
    """In how many pairs a sample of the noise is at the threshold sooner than the mean of the noise."""
    sooner, later = (sum(_verdict(each) == verdict for each in tests) for verdict in ("sooner than", "later than"))
    least = min(tests, key=lambda each: each.corrected or 0.0)
    pairs = "1 pair" if len(tests) == 1 else f"{len(tests)} pairs"
    text = f"After Holm's correction sampled noise is sooner than its mean in {sooner or 'none'} of {pairs}"
    return f"{text}{f' and later in {later}' * bool(later)} (smallest p {_holm(least)})"


def _verdict(each: Compared) -> str:
    if each.survival is None or each.corrected is None or each.corrected >= 0.05:
        return "not told apart from"
    return "sooner than" if each.survival.means[0] < each.survival.means[1] else "later than"


def _holm(each: Compared) -> str:
    return "< 0.001" if each.corrected is not None and each.corrected < 0.001 else f"= {each.shown_corrected}"


def _mean(effects: Sequence[Effect]) -> Finding | None:
    parts = [
        [effect for effect in _of(effects, kind, _SATURATED) if effect.arm.startswith("NAH")]
        for kind in ("mean", "on mean", "centred")
    ]
    if not all(parts):
        return None
    mean, more, alone = (part[0] for part in parts)
    enough = mean.clear and mean.better and not (more.better or more.worse)
    text = (
        f"In a network that starts saturated the mean of half-normal noise {'is enough' if enough else 'is not all'}: "
        f"it changes the test error of {short(mean.base)}% by {mean.shown} ({mean.evidence}), randomness on top of it "
        f"by {more.shown}, randomness alone by {alone.shown} ({alone.evidence})"
    )
    leaks = _of(effects, "leak", _SATURATED)
    if leaks:
        text += ", and a leak without noise by " + " and by ".join(f"{e.shown} ({e.arm})" for e in leaks)
    return Finding(f"{text}.", (mean, more, alone, *leaks))


def _input(effects: Sequence[Effect]) -> Finding | None:
    rows = _with_interval(_of(effects, "input"))
    if not rows:
        return None
    text = f"Noise at the input (NANI, NANIL, NANIS), against the hard function, is {_counted(rows)}{_which(rows)}"
    mean, more = (
        [effect for effect in _of(effects, kind, _SATURATED) if effect.arm.startswith("NANIS")]
        for kind in ("mean", "on mean")
    )
    if mean and more:
        text += (
            f". There the mean over its noise, without randomness, changes the test error by {mean[0].shown} "
            f"({mean[0].evidence}), and randomness on top of that by {more[0].shown} ({more[0].evidence})"
        )
    return Finding(f"{text}.", (*rows, *mean, *more))


def _with_interval(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    return tuple(effect for effect in effects if effect.low is not None)

"""What the effects of all experiments say, in six sentences whose numbers and verdicts are computed from the records.

A sentence is left out if the records lack what it is about. Its words depend on the numbers: where an interval contains
no change, it says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from noisyact_lab.analysis.effects import Effect
from noisyact_lab.analysis.estimates import short

__all__ = ["Finding", "findings", "limits"]

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


def findings(effects: Sequence[Effect]) -> list[Finding]:
    """The six sentences about the effects, as far as there are effects for them."""
    found = (write(effects) for write in (_leak, _on_leak, _no_leak, _mean, _plateau, _input))
    return [finding for finding in found if finding is not None]


def limits(effects: Sequence[Effect]) -> str:
    """What is to be said of all of them: the family, and how many rest on few seeds."""
    tested = sum(effect.holm is not None for effect in effects)
    few = sum(effect.seeds < 3 for effect in effects)
    recall = any(effect.experiment == "recall" and effect.kind == "on leak" for effect in effects)
    return (
        f"{len(effects)} effects; Holm's correction is over the {tested} that have a p-value. {few} have fewer than 3 "
        "seeds: they have an interval (*) only where the variance can be pooled over the arms. That an effect is not "
        "told apart from no change does not show that there is none."
        + " In recall the controller hardly saturates, so hardly any noise was drawn there."
        * recall
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
    text, words = f"Noise on top of the leak is {_counted(rows)}", [e for e in rows if e.experiment == _WORDS]
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
    text, words = (
        f"Noise without a leak, against the hard function, is {_counted(rows)}",
        _of(effects, "no leak", _WORDS),
    )
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


def _plateau(effects: Sequence[Effect]) -> Finding | None:
    """The leak, and of each arm's noise the mean and the randomness, where the reference is stuck for long."""
    told = {
        "leak": "the leak changes that by {}",
        "mean": "the mean of noise, without randomness, by {}",
        "on mean": "randomness on top of the mean by {}",
    }
    rows = {kind: _with_interval(_of(effects, kind, _PLATEAU)) for kind in told}
    if not all(rows.values()):
        return None
    said = [
        text.format(", ".join(f"{e.shown} ({e.arm}; {e.evidence})" for e in rows[kind])) for kind, text in told.items()
    ]
    every = tuple(effect for some in rows.values() for effect in some)
    start = f"Where the soft network sits on a plateau ({_PLATEAU}) the hard one needs {every[0].base:,.0f} updates"
    return Finding(f"{start}; {'; '.join(said)}.", every)


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
    which = [f"{e.arm} in {e.experiment}" for e in rows if e.clear]
    text = f"Noise at the input (NANI, NANIL, NANIS), against the hard function, is {_counted(rows)}"
    text += f"{': ' * bool(which)}{', '.join(which)}"
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

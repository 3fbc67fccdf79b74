"""BLEU and METEOR of captions, by the standard scorers (pycocoevalcap), for the records of finished runs.

Text is scored as words in lower case without punctuation, which the references already are.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from noisyact.extras import how_to_install
from noisyact_lab.analysis.scoring import Scores, put_scores, sampled
from noisyact_lab.experiments.caption.caption import CAPTIONS, SCORED

__all__ = ["add_scores", "score", "why_no_meteor"]

_OLDEST_JAVA = 11


def score(captions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> Scores:
    """Score a caption of each image against all references of that image.

    Args:
        captions: by image.
        references: one or more for each of those images.
    """
    if importlib.util.find_spec("pycocoevalcap") is None:
        raise ValueError(f"scoring captions needs pycocoevalcap: {how_to_install('captions')}")
    if not captions:
        raise ValueError("there is no caption to score")
    if lacking := [image for image in captions if not references.get(image)]:
        raise ValueError(f"{len(lacking):,} of {len(captions):,} images have no reference, such as {lacking[0]!r}")
    from pycocoevalcap.bleu.bleu import Bleu

    given = {image: list(references[image]) for image in captions}
    ours = {image: [caption] for image, caption in captions.items()}
    bleu, _ = Bleu(4).compute_score(given, ours, verbose=0)
    values: dict[str, float] = dict(zip(SCORED, (_per_cent(value) for value in bleu), strict=False))
    missing, java = why_no_meteor(), None
    if not missing:
        try:
            values["meteor"], java = _per_cent(_meteor(given, ours)), _java()
        except (OSError, ValueError) as error:  # it answers with something else than a number
            missing = f"METEOR failed: {error}"
    text = json.dumps([given, ours], sort_keys=True)
    signature = {
        "pycocoevalcap": metadata.version("pycocoevalcap"), "java": java, "words": "lower case, no punctuation",
        "images": len(ours), "references": max(map(len, given.values())),
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }  # fmt: skip
    return Scores(values, signature, missing)


def _per_cent(value: float) -> float:
    """Rounded: where no n-gram is right, the scorer has 1e-15 for none."""
    return round(100.0 * float(value), 6)


def why_no_meteor() -> str:
    """Why METEOR, a program in Java, cannot be had here; empty where it can."""
    if shutil.which("java") is None:
        return f"METEOR needs Java {_OLDEST_JAVA} or newer, and there is no java here (Debian: default-jre-headless)"
    try:
        version = _java()
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return f"METEOR needs Java {_OLDEST_JAVA} or newer, and the java here does not run: {error}"
    number = version.split(".")[0]
    if not number.isdigit() or int(number) < _OLDEST_JAVA:
        return f"METEOR needs Java {_OLDEST_JAVA} or newer, and the java here is {version}"
    return ""


def _java() -> str:
    """Its version, such as 17.0.15, which it prints in quotes."""
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True, timeout=60)
    return (said.stderr + said.stdout).split('"')[1]


def _meteor(references: dict[str, list[str]], captions: dict[str, list[str]]) -> float:
    from pycocoevalcap.meteor.meteor import Meteor

    scorer = Meteor()
    try:
        return float(scorer.compute_score(references, captions)[0])
    finally:
        if scorer.lock.locked():  # an error leaves it so, and the scorer would wait for it for ever when it is deleted
            scorer.lock.release()
        process = scorer.meteor_p
        process.kill()
        process.communicate()


def add_scores(run: Path, references: Mapping[str, Sequence[str]]) -> Scores:
    """Score the captions that a run has kept, and put the scores and their signature into its record."""
    scores = score({row[0]: row[1] for row in sampled(run, CAPTIONS, 2)}, references)
    put_scores(run, scores, SCORED)
    return scores

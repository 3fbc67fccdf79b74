"""BLEU and METEOR of captions, by the standard scorers (pycocoevalcap), added to the records of finished runs.

A run may be done where there are neither the scorers nor Java: it keeps its captions, and they are scored elsewhere. So
are translations (translate_scores.py). The scores go into the run's `result.json` with a signature of their own, and
nothing else in it changes. Text is scored as words in lower case without punctuation, which the references already are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from noisyact.extras import how_to_install
from noisyact_lab.engine.folder.files import Damaged, locked, read_json, write_json
from noisyact_lab.experiments.caption.caption import CAPTIONS, SCORED

__all__ = ["Scores", "add_scores", "put", "runs_in", "sampled", "score", "scored_before", "why_no_meteor"]

_OLDEST_JAVA = 11


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores in per cent by name, what gave them, and why one is missing.

    Args:
        values: BLEU-1 to -4, and METEOR where it could be had.
        signature: of the scorers and of what they were given.
        missing: why there is no METEOR; empty where there is.
    """

    values: dict[str, float]
    signature: dict[str, Any]
    missing: str = ""


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
    if alone := [image for image in captions if not references.get(image)]:
        raise ValueError(f"{len(alone):,} of {len(captions):,} images have no reference, such as {alone[0]!r}")
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


def runs_in(folder: Path, experiment: str = "caption") -> list[Path]:
    """The folders of finished runs of an experiment at or below a folder, in order."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    found = []
    for path in sorted(folder.rglob("result.json")):
        record = read_json(path, dict)
        if record.get("experiment") == experiment and record.get("status") == "finished":
            found.append(path.parent)
    if not found:
        raise ValueError(f"{folder}: there is no finished run of {experiment!r} at or below it")
    return found


def add_scores(run: Path, references: Mapping[str, Sequence[str]]) -> Scores:
    """Score the captions that a run has kept, and put the scores and their signature into its record."""
    scores = score({row[0]: row[1] for row in sampled(run, CAPTIONS, 2)}, references)
    put(run, scores, SCORED)
    return scores


def sampled(run: Path, title: str, columns: int = 1) -> list[list[str]]:
    """The rows of a table among the samples of a run; each begins with so many columns of text."""
    path = run / "samples.json"
    tables = [table for table in read_json(path, list) if isinstance(table, dict)] if path.exists() else []
    rows = next((table.get("rows") for table in tables if table.get("title") == title), None)
    if rows is None:
        raise ValueError(f"{run}: its samples.json has no table {title!r}")
    if not isinstance(rows, list) or not all(_is_text(row, columns) for row in rows):
        raise Damaged(path, f"{title!r} is no table of {columns} columns of text")
    return rows


def _is_text(row: Any, columns: int) -> bool:
    return isinstance(row, list) and len(row) >= columns and all(isinstance(cell, str) for cell in row[:columns])


def scored_before(run: Path, names: Sequence[str]) -> Scores | None:
    """The scores of these names that a run has while its samples are gone, as in records kept small; else None."""
    record = _record(run)
    if "scored" not in record or (run / "samples.json").exists():
        return None
    values = {name: record["result"][name] for name in names if name in record["result"]}
    return Scores(values, record["scored"], "runs without their samples.json keep the scores they had")


def _record(run: Path) -> dict[str, Any]:
    record = read_json(run / "result.json", dict)
    if not isinstance(record.get("result"), dict):
        raise Damaged(run / "result.json", "it has no result")
    return record


def put(run: Path, scores: Scores, names: Sequence[str]) -> None:
    """Put scores into the record of a run, in the place of all there are of these names."""
    with locked(run):
        record = _record(run)
        others = {name: value for name, value in record["result"].items() if name not in names}
        record["result"], record["scored"] = {**others, **scores.values}, scores.signature
        write_json(run / "result.json", record)

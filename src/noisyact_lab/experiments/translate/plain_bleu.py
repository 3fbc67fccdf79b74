"""BLEU of plain text for finished runs of `translate` that were done where sacremoses is not installed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from noisyact_lab.analysis.scoring import Scores, put_scores, sampled
from noisyact_lab.data import moses
from noisyact_lab.experiments.translate.task import TRANSLATIONS
from noisyact_lab.experiments.translate.translator import PLAIN, PLAIN_INTERVAL, plain_bleu

__all__ = ["add_scores"]


def add_scores(run: Path) -> Scores:
    """Score the translations that a run has kept, and put the score and its signature into its record."""
    rows = sampled(run, TRANSLATIONS, 3)
    references, translations = ([row[column] for row in rows] for column in (1, 2))
    found = plain_bleu((translation.split(" ") for translation in translations), references)
    text = json.dumps([references, translations])
    signature = {
        "sacrebleu": found.signature, "sacremoses": moses.version(), "sentences": len(rows),
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }  # fmt: skip
    scores = Scores({PLAIN: found.score, PLAIN_INTERVAL: found.interval}, signature)
    put_scores(run, scores, (PLAIN, PLAIN_INTERVAL))
    return scores

"""Translation on a machine with only the packed corpus: it trains, and BLEU on plain text is computed elsewhere."""

import pytest
from parallel_cases import packed_backwards  # noqa: F401

pytest.importorskip("sacrebleu")

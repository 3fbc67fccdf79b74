"""Translation on a machine that has the packed corpus alone: it trains, and what it lacks is scored elsewhere."""

import pytest
from parallel_cases import packed_backwards  # noqa: F401

pytest.importorskip("sacrebleu")

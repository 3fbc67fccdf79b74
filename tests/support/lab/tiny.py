"""Settings that make a run of each experiment last seconds."""

CAPTION = {
    "verified": False, "images": None, "held_out": None, "vocabulary": None, "side": 14, "batch": 16, "epochs": 2,
    "embedding": 8, "hidden": 8, "attention": 8, "longest": 6,
}  # fmt: skip

EXECUTE = {"hidden": 12, "batch": 6, "steps": 15, "round": 5, "test_rows": 91, "curve_rows": 46, "valid_rows": 46}

MNIST = {"validation": 100, "measured": 100, "batch": 16, "hidden": 24, "verified": False}

PTB_CHAR = {"hidden": 24, "tokens": None, "batch": 8, "steps": 20, "epochs": 4, "evaluate_every": 20, "verified": False}

PTB_WORD = {"hidden": 12, "tokens": None, "vocabulary": None, "batch": 4, "steps": 5, "verified": False}

TRANSLATE = {"words": 20, "word_size": 12, "hidden": 16, "batch": 8, "updates": 12, "evaluate_every": 4,
        "longest_translation": 6}  # fmt: skip

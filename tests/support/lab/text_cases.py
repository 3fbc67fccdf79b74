"""A small text in three parts with the form of the Penn Treebank, and where the tests keep it."""

import random

import pytest

PARTS = {"train": 150, "valid": 24, "test": 20}
SUBJECTS, VERBS, OBJECTS = ["the cat", "a dog", "mr. <unk>"], ["sees", "likes", "sold"], ["N shares", "it", "the <unk>"]


def lines_of(part):
    """Sentences of a small grammar: what follows a word is often sure, so that a model has something to learn."""
    draw = random.Random(part)
    choices = [" ".join(map(draw.choice, (SUBJECTS, VERBS, OBJECTS))) for _ in range(PARTS[part])]
    return ["the cat sees it a dog likes N shares mr. <unk> sold the <unk>" if part == "train" else "it", *choices]


def write_treebank(folder):
    folder.mkdir(parents=True)
    for part in PARTS:
        (folder / f"ptb.{part}.txt").write_text("".join(f" {line} \n" for line in lines_of(part)))


@pytest.fixture(name="treebank")
def small_treebank(own_data):
    folder = own_data / "ptb"
    write_treebank(folder)
    return folder

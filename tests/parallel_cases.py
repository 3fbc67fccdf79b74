"""A small parallel corpus in the place of Multi30k: French is English backwards, word for word."""

import random

import pytest

WORDS = {"one": "un", "two": "deux", "three": "trois", "four": "quatre", "five": "cinq", "six": "six"}
COUNTS = {"train": 400, "val": 30, "test_2016_flickr": 20}


def pairs_of(part, count):
    draw = random.Random(part)
    english = [draw.choices(list(WORDS), k=draw.randint(1, 4)) for _ in range(count)]
    return [(" ".join(words), " ".join(WORDS[word] for word in reversed(words))) for words in english]


def write(folder, part, pairs):
    for index, language in enumerate(("en", "fr")):
        (folder / f"{part}.{language}").write_text("".join(pair[index] + "\n" for pair in pairs))


@pytest.fixture(name="backwards")
def backwards_corpus(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "multi30k"
    folder.mkdir(parents=True)
    for part, count in COUNTS.items():
        write(folder, part, pairs_of(part, count))
    monkeypatch.setenv("NOISYACT_DATA", str(folder.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder

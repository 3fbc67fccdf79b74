"""A small parallel corpus in the place of Multi30k: French is English backwards, word for word."""

import random

import pytest
import torch

from noisyact_lab.data.packed import PackedCorpus, Pairs, Sentences, numbers_of
from noisyact_lab.data.text import EOS, UNKNOWN, Vocabulary

WORDS = {"one": "un", "two": "deux", "three": "trois", "four": "quatre", "five": "cinq", "six": "six"}
COUNTS = {"train": 400, "val": 30, "test_2016_flickr": 20}
PACKED = "multi30k-20-words-50-long.npz"


def pairs_of(part, count):
    draw = random.Random(part)
    english = [draw.choices(list(WORDS), k=draw.randint(1, 4)) for _ in range(count)]
    return [(" ".join(words), " ".join(WORDS[word] for word in reversed(words))) for words in english]


def write(folder, part, pairs):
    for index, language in enumerate(("en", "fr")):
        (folder / f"{part}.{language}").write_text("".join(pair[index] + "\n" for pair in pairs))


@pytest.fixture(name="backwards")
def backwards_corpus(own_data):
    folder = own_data / "multi30k"
    folder.mkdir(parents=True)
    for part, count in COUNTS.items():
        write(folder, part, pairs_of(part, count))
    return folder


def packed_corpus():
    """The corpus packed without sacremoses, which would not change its words."""
    vocabularies = [Vocabulary([EOS, UNKNOWN, *words]) for words in (WORDS, WORDS.values())]
    parts = []
    for part, count in COUNTS.items():
        texts = list(zip(*pairs_of(part, count), strict=True))
        sides = []
        for text, vocabulary in zip(texts, vocabularies, strict=True):
            numbers = [numbers_of(line.split(), vocabulary) for line in text]
            flat = torch.tensor([number for sentence in numbers for number in sentence], dtype=torch.int32)
            sides.append(Sentences.flat(flat, torch.tensor([len(sentence) for sentence in numbers])))
        kept = [[], []] if part == "train" else [list(text) for text in texts]
        parts.append(Pairs(*sides, *kept, *kept))
    return PackedCorpus(*vocabularies, *parts, {"corpus": "multi30k", "files": {}, "counts": {}})


@pytest.fixture(name="packed_alone")
def packed_backwards(own_data):
    """A machine that has the packed corpus, and neither its text nor sacremoses."""
    path = own_data / "packed" / PACKED
    path.parent.mkdir(parents=True)
    packed_corpus().write(path)
    return path

"""A small data set of the form of Flickr8k, in which one bright place says what an image shows."""

import random

import numpy as np
import pytest

NOUNS = ["dog", "boy", "bird"]
PARTS = {"train": 48, "dev": 9, "test": 9}
CHANNELS = 6


def image_of(part, number):
    """Its name, what it shows and where."""
    draw = random.Random(f"{part} {number}")
    return f"{part}{number:03d}_x.jpg", draw.randrange(len(NOUNS)), draw.randrange(196)


def captions_of(shown):
    noun = NOUNS[shown]
    return [f"A {noun} .", f"The {noun} runs !", f"There is a {noun} .", f"One {noun} , alone", f"A {noun} runs ."]


def write(folder):
    """Write all files of the data set."""
    folder.mkdir(parents=True)
    token = []
    for part, count in PARTS.items():
        images = [image_of(part, number) for number in range(count)]
        (folder / f"Flickr_8k.{part}Images.txt").write_text("".join(f"{name}\n" for name, _, _ in images))
        q = np.zeros((count, CHANNELS, 196), dtype=np.uint8)
        for number, (name, shown, place) in enumerate(images):
            q[number, shown, place] = 30  # the bright place
            q[number, len(NOUNS) :, :] = np.random.default_rng(number).integers(0, 6, (CHANNELS - len(NOUNS), 196))
            token += [f"{name}#{k}\t{caption}\n" for k, caption in enumerate(captions_of(shown))]
        scale = np.linspace(1.0, 2.0, CHANNELS, dtype=np.float32)
        np.savez_compressed(
            folder / f"vgg19-conv5_4.{part}.npz", q=q, scale=scale, levels=31, ids=np.array([i[0] for i in images])
        )
    (folder / "Flickr8k.token.txt").write_text("".join(token) + "stray.jpg.1#0\tNobody 's picture .\n")


@pytest.fixture(name="flickr")
def small_flickr(own_data):
    folder = own_data / "flickr8k"
    write(folder)
    return folder

"""A data set of two small files, and where the tests keep it."""

import dataclasses
import hashlib
import random

import pytest

from noisyact_lab.data.catalog import DataFile, DataSet

FIRST, SECOND = b"one two three\n" * 2000, bytes(random.Random(0).randbytes(70_000))


def file_of(name, data, address=None, unpacked=None):
    return DataFile(name, len(data), hashlib.sha256(data).hexdigest(), address, unpacked)


def set_of(*files):
    return DataSet("tiny", "two files", files, "none", "Ask us.", "nothing")


TINY = set_of(file_of("first.txt", FIRST), file_of("second.bin", SECOND))


@pytest.fixture(autouse=True, name="folder")
def data_folder(own_data):
    return own_data / "tiny"


def left_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def at(base):
    return set_of(*(dataclasses.replace(file, address=base + file.name) for file in TINY.files))

"""Finding a data set: in the folder that NOISYACT_DATA names, then in the cache. Nothing is fetched."""

from __future__ import annotations

import os
from pathlib import Path

from noisyact_lab.data.catalog import DataFile, DataSet, dataset

__all__ = ["Missing", "cache", "file_in", "find", "has_all", "home", "places", "status"]

VARIABLE = "NOISYACT_DATA"


class Missing(FileNotFoundError):
    """Files of a data set are not there; the message says which, where they were looked for and how to get them."""


def home() -> Path:
    """Where data is put: the folder NOISYACT_DATA names, else noisyact in the user's cache."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else cache()


def cache() -> Path:
    """noisyact in the user's cache: what is put there can be had again."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "noisyact"


def places(name: str | DataSet) -> list[Path]:
    """The folders in which a data set is looked for, in order."""
    chosen = dataset(name)
    homes = dict.fromkeys([home(), cache()])
    return [root / folder for root in homes for folder in (chosen.name, *chosen.folders)]


def file_in(folder: Path, file: DataFile) -> Path | None:
    """The path of a file in a folder, as it is or decompressed, or a text compressed; None where it is not there."""
    names = [form.name for form in file.forms]
    if names[-1].endswith(".txt"):  # who reads text reads it compressed
        names += [names[-1] + suffix for suffix in (".gz", ".xz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def find(name: str | DataSet) -> Path:
    """The folder that has every file of a data set. What the files hold is for :mod:`noisyact_lab.data.verify`.

    Raises: :class:`Missing`.
    """
    chosen = dataset(name)
    best = _best(chosen)
    absent = [file.name for file in chosen.files if file_in(best, file) is None]
    if not absent:
        return best
    looked = ", ".join(str(place) for place in places(chosen))
    raise Missing(
        f"data set {chosen.name!r}: {len(absent)} of {len(chosen.files)} files are missing "
        f"({', '.join(absent[:4])}{', ...' if len(absent) > 4 else ''}). Looked in: {looked}. {_advice(chosen)}"
    )


def has_all(name: str | DataSet) -> bool:
    """Whether :func:`find` finds it."""
    chosen = dataset(name)
    return _present(_best(chosen), chosen) == len(chosen.files)


def status(name: str | DataSet) -> str:
    """In a few words: "present", "missing", how many files of how many are there, or are of a wrong size.

    What the files hold is not read: :func:`noisyact_lab.data.verify.verify` does that.
    """
    chosen = dataset(name)
    best = _best(chosen)
    damaged = sum(_of_another_size(path, file) for file in chosen.files if (path := file_in(best, file)) is not None)
    if damaged:
        return f"damaged ({damaged} of {len(chosen.files)} files)"
    if has_all(chosen):
        return "present"
    there = _present(best, chosen)
    return f"{there} of {len(chosen.files)} files" if there else "missing"


def _present(folder: Path, chosen: DataSet) -> int:
    return sum(file_in(folder, file) is not None for file in chosen.files)


def _of_another_size(path: Path, file: DataFile) -> bool:
    """Whether it cannot be the file. The size of a text that is compressed here and not in the data set is unknown."""
    sizes = {form.name: form.size for form in file.forms}
    return path.stat().st_size != sizes.get(path.name, path.stat().st_size)


def _best(chosen: DataSet) -> Path:
    """The place that has most of the files; the first of those that have as many."""
    return max(places(chosen), key=lambda place: _present(place, chosen))


def _advice(chosen: DataSet) -> str:
    elsewhere = f"set {VARIABLE} to a folder that has {chosen.name}/"
    if chosen.fetchable:
        return f"To get it: noisyact data fetch {chosen.name} ({chosen.size / 1e6:.1f} MB), or {elsewhere}."
    return f"To get it: {chosen.source} Then {elsewhere}."

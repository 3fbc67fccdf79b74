"""The search for data sets: first in the folder that NOISYACT_DATA names, then in the cache. Nothing is downloaded."""

from __future__ import annotations

import os
from pathlib import Path

from noisyact_lab.data.catalog import DataFile, DataSet, dataset

__all__ = ["Missing", "cache", "file_in", "find", "has_all", "home", "places", "status"]

VARIABLE = "NOISYACT_DATA"


class Missing(FileNotFoundError):
    """Files of a data set are missing. The message names them, the folders searched and how to get the files."""


def home() -> Path:
    """Return the folder that data is written to: the one NOISYACT_DATA names, else :func:`cache`."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else cache()


def cache() -> Path:
    """Return the folder `noisyact` in the user's cache, for data that can be fetched or computed again."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "noisyact"


def places(name: str | DataSet) -> list[Path]:
    """Return the folders that are searched for a data set, in order."""
    chosen = dataset(name)
    homes = dict.fromkeys([home(), cache()])
    return [root / folder for root in homes for folder in (chosen.name, *chosen.folders)]


def file_in(folder: Path, file: DataFile) -> Path | None:
    """Return the path of a file or of its decompressed form, for texts also .gz and .xz. None if it is missing."""
    names = [form.name for form in file.forms]
    if names[-1].endswith(".txt"):  # all readers of text also read compressed text
        names += [names[-1] + suffix for suffix in (".gz", ".xz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def find(name: str | DataSet) -> Path:
    """Return the folder that has every file of a data set. The contents are not checked (see `verify`).

    Raises: :class:`Missing` if no folder has all files.
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
    """Whether one folder has all files of a data set."""
    chosen = dataset(name)
    return _present(_best(chosen), chosen) == len(chosen.files)


def status(name: str | DataSet) -> str:
    """Return "present", "missing", or how many files are present or have a wrong size. No contents are read."""
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
    """Whether the size differs from the catalogue's, which has no size for a text that the user compressed."""
    sizes = {form.name: form.size for form in file.forms}
    return path.stat().st_size != sizes.get(path.name, path.stat().st_size)


def _best(chosen: DataSet) -> Path:
    """Return the folder that has the most files of the data set, and of several such folders the first."""
    return max(places(chosen), key=lambda place: _present(place, chosen))


def _advice(chosen: DataSet) -> str:
    elsewhere = f"set {VARIABLE} to a folder that contains {chosen.name}/"
    if chosen.fetchable:
        return f"To get it: noisyact data fetch {chosen.name} ({chosen.size / 1e6:.1f} MB), or {elsewhere}."
    return f"To get it: {chosen.source} Then {elsewhere}."

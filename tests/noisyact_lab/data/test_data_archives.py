"""Archives with files of a data set: valid ones and malicious ones."""

import contextlib
import gzip
import io
import random
import stat
import struct
import tarfile
import time
import zipfile

import pytest
from data_cases import FIRST, SECOND, TINY, data_folder, left_in  # noqa: F401

from noisyact_lab.data import fetch, verify


def tar_of(path, *members, mode="w:gz"):
    """A tar of (name, data or attributes)."""
    with tarfile.open(path, mode) as made:
        for name, content in members:
            member = tarfile.TarInfo(name)
            attributes = content if isinstance(content, dict) else {"size": len(content)}
            for key, value in attributes.items():
                setattr(member, key, value)
            made.addfile(member, None if isinstance(content, dict) else io.BytesIO(content))
    return path


def zip_of(path, *members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data, mode in members:
            member = zipfile.ZipInfo("placeholder")
            member.filename, member.external_attr, member.compress_type = name, mode << 16, zipfile.ZIP_DEFLATED
            made.writestr(member, data)
    return path


GOOD = (("some/first.txt", FIRST), ("some/second.bin", SECOND))


@pytest.mark.parametrize("kind", ["tar.gz", "tar", "zip"])
def test_good_archives(kind, tmp_path, folder):
    path = tmp_path / f"good.{kind}"
    if kind == "zip":
        zip_of(path, *((name, data, 0o644) for name, data in GOOD), ("some/readme", b"not asked for", 0))
    else:
        tar_of(path, *GOOD, ("some/readme", b"not asked for"), mode="w" if kind == "tar" else "w:gz")
    assert fetch.fetch(TINY, archive=path) == folder
    assert left_in(folder) == ["first.txt", "second.bin"]
    assert verify.verify(TINY) == []


FULL = b"x" * 10
TARS = {
    "up": ("../escaped", FULL),
    "up inside": ("a/../../escaped", FULL),
    "absolute": ("/tmp/escaped", FULL),
    "symlink": ("link", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
    "hardlink": ("link", {"type": tarfile.LNKTYPE, "linkname": "../../escaped"}),
    "device": ("device", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
    "fifo": ("fifo", {"type": tarfile.FIFOTYPE}),
    "drive letter": ("C:escaped", FULL),
    "backslash": ("..\\escaped", FULL),
    "twice": ("some/first.txt", FIRST),
    "twice elsewhere": ("other/first.txt", FIRST),
    "case": ("SOME/First.TXT", FULL),
}


@pytest.mark.parametrize("attack", TARS)
def test_hostile_tars_are_refused_whole(attack, tmp_path, folder):
    path = tar_of(tmp_path / "bad.tar.gz", *GOOD, TARS[attack])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(fetch.Refused, match=r"bad\.tar\.gz: refused for its member"):
        fetch.fetch(TINY, archive=path)
    assert left_in(folder) == []
    assert {p.name for p in tmp_path.rglob("*")} - {p.name for p in before} == {"data", "tiny", ".lock"}


def test_setuid_is_refused(tmp_path):
    path = tmp_path / "bad.tar"
    with tarfile.open(path, "w") as made:
        member = tarfile.TarInfo("program")
        member.mode = 0o4755
        made.addfile(member)
    with pytest.raises(fetch.Refused, match="special mode 4755"):
        fetch.fetch(TINY, archive=path)


ZIPS = {
    "up": ("../escaped", 0o644),
    "absolute": ("/tmp/escaped", 0o644),
    "drive letter": ("C:/escaped", 0o644),
    "backslash": ("..\\escaped", 0o644),
    "NUL": ("first.txt\0.png", 0o644),
    "symlink": ("link", stat.S_IFLNK | 0o777),
    "device": ("device", stat.S_IFCHR | 0o644),
    "setuid": ("program", stat.S_IFREG | 0o4755),
    "case": ("SOME/First.TXT", 0o644),
    "twice elsewhere": ("other/first.txt", 0o644),
}


@pytest.mark.parametrize("attack", ZIPS)
def test_hostile_zips_are_refused_whole(attack, tmp_path, folder):
    name, mode = ZIPS[attack]
    path = zip_of(tmp_path / "bad.zip", *((n, data, 0o644) for n, data in GOOD), (name, b"/etc/passwd", mode))
    with pytest.raises(fetch.Refused, match=r"bad\.zip: refused for its member"):
        fetch.fetch(TINY, archive=path)
    assert left_in(folder) == []


def lying_tar(path, kind, size):
    """A small tar.gz whose one header promises `size` zeros; 40 MB of them are there."""
    member = tarfile.TarInfo("first.txt")
    member.size, member.type = size, kind
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(member.tobuf())
        for _ in range(40):
            stream.write(bytes(1 << 20))
    return path


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_bombs_in_tars_are_refused_fast(kind, tmp_path, folder):
    path = lying_tar(tmp_path / "bomb.tar.gz", kind, 8_000_000_000)
    start = time.monotonic()
    with pytest.raises(fetch.Refused, match=r"bomb\.tar\.gz: refused"):
        fetch.fetch(TINY, archive=path)
    assert time.monotonic() - start < 1
    assert left_in(folder) == []


def test_bombs_in_zips_are_refused(tmp_path, folder):
    path = zip_of(tmp_path / "bomb.zip", ("zeros", bytes(30_000_000), 0o644))
    with pytest.raises(fetch.Refused, match="more than the"):
        fetch.fetch(TINY, archive=path)
    data = bytearray(zip_of(tmp_path / "small.zip", ("first.txt", bytes(3_000_000), 0o644)).read_bytes())
    for signature, offset in ((b"PK\1\2", 24), (b"PK\3\4", 22)):  # it says it is as small as first.txt
        place = data.index(signature) + offset
        data[place : place + 4] = struct.pack("<I", len(FIRST))
    path.write_bytes(data)
    with pytest.raises(fetch.Refused):
        fetch.fetch(TINY, archive=path)
    assert left_in(folder) == []


def test_too_many_members(tmp_path):
    path = tmp_path / "many.zip"
    with zipfile.ZipFile(path, "w") as made:
        for i in range(100_001):
            made.writestr(zipfile.ZipInfo(str(i)), b"")
    with pytest.raises(fetch.Refused, match="more than 100,000 members"):
        fetch.fetch(TINY, archive=path)


def test_archives_that_are_not(tmp_path, folder):
    good = tar_of(tmp_path / "good.tar.gz", *GOOD).read_bytes()
    path = tmp_path / "bad"
    for data in (b"", b"PK\3\4 no", b"text" * 1000, good[: len(good) // 2], gzip.compress(b"no tar" * 500)):
        path.write_bytes(data)
        with pytest.raises(fetch.Refused):
            fetch.fetch(TINY, archive=path)
    with pytest.raises(fetch.Refused, match=r"has none of first\.txt, second\.bin"):
        fetch.fetch(TINY, archive=tar_of(path, ("else", b"")))
    assert left_in(folder) == []


def test_broken_archives_never_do_more_than_refuse(tmp_path, folder):
    draw = random.Random(1)
    tar = tar_of(tmp_path / "a", *GOOD, mode="w").read_bytes()
    packed = zip_of(tmp_path / "b", *((n, data, 0o644) for n, data in GOOD)).read_bytes()
    path = tmp_path / "broken"
    for turn in range(300):
        data = bytearray((tar, packed)[turn % 2])
        for _ in range(draw.randint(1, 8)):
            where = draw.choice((draw.randrange(600), -1 - draw.randrange(300), draw.randrange(len(data))))
            data[where] = draw.randrange(256)
        path.write_bytes(data)
        with contextlib.suppress(fetch.Refused):
            fetch.fetch(TINY, archive=path)
        assert set(left_in(folder)) <= {"first.txt", "second.bin"}
        assert all((folder / f.name).read_bytes() in (FIRST, SECOND) for f in TINY.files if (folder / f.name).exists())
        for file in TINY.files:
            (folder / file.name).unlink(missing_ok=True)

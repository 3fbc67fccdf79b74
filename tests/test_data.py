"""Data sets: found, checked, fetched from a real https server, and taken out of archives that do their worst."""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import http.server
import io
import os
import random
import shutil
import socket
import ssl
import stat
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import pytest

from noisyact.data import catalog, fetch, idx, locate, verify
from noisyact.data.catalog import DataFile, DataSet

FIRST, SECOND = b"one two three\n" * 2000, bytes(random.Random(0).randbytes(70_000))


def file_of(name, data, address=None, unpacked=None):
    return DataFile(name, len(data), hashlib.sha256(data).hexdigest(), address, unpacked)


def set_of(*files):
    return DataSet("tiny", "two files", files, "none", "Ask us.", "nothing")


TINY = set_of(file_of("first.txt", FIRST), file_of("second.bin", SECOND))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NOISYACT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data" / "tiny"


def left_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


# --- the catalog, and finding ------------------------------------------------------------------------------------


def test_catalog_is_sane():
    for name in catalog.names():
        chosen = catalog.dataset(name)
        forms = [form for file in chosen.files for form in file.forms]
        assert len({form.name for form in forms}) == len(forms)
        assert all(form.size > 0 and len(form.sha256) == 64 and "/" not in form.name for form in forms)
        assert all(file.address is None or file.address.startswith("https://") for file in chosen.files)
        assert chosen.fetchable or chosen.source
        assert chosen.licence.endswith(".")
    with pytest.raises(ValueError, match=r"'imagenet' is unknown; allowed are mnist, ptb"):
        catalog.dataset("imagenet")


def test_missing_data_says_which_where_and_how(tmp_path):
    with pytest.raises(locate.Missing) as caught:
        locate.find("mnist")
    said = str(caught.value)
    assert "4 of 4 files" in said
    assert "train-labels-idx1-ubyte.gz" in said
    for place in ("data/mnist", "data/MNIST/raw", "cache/noisyact/mnist"):
        assert str(tmp_path / place) in said
    assert "noisyact data fetch mnist (11.6 MB)" in said
    assert "NOISYACT_DATA" in said
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(locate.Missing, match=r"statmt\.org"):
        locate.find("europarl")
    assert locate.status("mnist") == "missing"


def test_found_in_any_usual_place_and_form(folder, tmp_path):
    packed = gzip.compress(FIRST)
    chosen = dataclasses.replace(
        set_of(file_of("first.txt.gz", packed, unpacked=file_of("first.txt", FIRST)), file_of("second.bin", SECOND)),
        folders=("other/raw",),
    )
    for place in (tmp_path / "cache" / "noisyact" / "tiny", tmp_path / "data" / "other" / "raw", folder):
        place.mkdir(parents=True)
        (place / "second.bin").write_bytes(SECOND)
        assert locate.status(chosen) == ("1 of 2 files" if place.parts[-2] == "noisyact" else "present")
        (place / "first.txt").write_bytes(FIRST)
        assert locate.find(chosen) == place
        assert verify.verify(chosen) == []
    (folder / "first.txt.gz").write_bytes(packed)
    assert locate.file_in(folder, chosen.files[0]) == folder / "first.txt.gz"


def test_verify_names_what_is_wrong(folder):
    folder.mkdir(parents=True)
    (folder / "first.txt").write_bytes(FIRST[:-1])
    (folder / "second.bin").write_bytes(SECOND[:-1] + b"!")
    seen = []
    size, checksum = verify.verify(TINY, lambda *what: seen.append(what))
    assert "first.txt has 27,999 bytes, not 28,000" in size
    assert TINY.files[1].sha256 in checksum
    assert seen[-1] == ("second.bin", 70_000, 70_000)


def test_nothing_but_fetch_uses_the_network(folder, monkeypatch):
    def refused(*args, **kwargs):
        raise AssertionError("a socket")

    monkeypatch.setattr(socket, "socket", refused)
    folder.mkdir(parents=True)
    for name, data in (("first.txt", FIRST), ("second.bin", SECOND)):
        (folder / name).write_bytes(data)
    assert verify.verify(TINY) == []
    assert fetch.fetch(TINY) == folder  # all there
    for name in catalog.names():
        assert locate.status(name) == "missing"


# --- fetching ----------------------------------------------------------------------------------------------------


class Handler(http.server.SimpleHTTPRequestHandler):
    requests: list[str] = []  # noqa: RUF012

    def do_GET(self):
        self.requests.append(self.path)
        time.sleep(0.1)
        if self.path.startswith("/away"):
            self.send_response(302)
            self.send_header("Location", "http://localhost:1/first.txt")
            self.end_headers()
            return
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            super().do_GET()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command, to make a certificate for the test server")
    where = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=where, check=True, capture_output=True,
    )  # fmt: skip
    return where


@pytest.fixture
def server(certificate, tmp_path, monkeypatch):
    """The address of an https server that has TINY's files, and the requests it got."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "first.txt").write_bytes(FIRST)
    (served / "second.bin").write_bytes(SECOND)
    handler = type("Own", (Handler,), {"requests": []})
    with http.server.ThreadingHTTPServer(
        ("localhost", 0), functools.partial(handler, directory=str(served))
    ) as running:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        running.socket = context.wrap_socket(running.socket, server_side=True)
        running.handle_error = lambda *args: None  # a client that does not trust the certificate hangs up
        threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
        monkeypatch.setenv("no_proxy", "localhost")
        yield f"https://localhost:{running.server_address[1]}/", handler.requests, served
        running.shutdown()


def at(base):
    return set_of(*(dataclasses.replace(file, address=base + file.name) for file in TINY.files))


def test_fetch(server, folder):
    base, requests, _ = server
    seen = []
    assert fetch.fetch(at(base), lambda *what: seen.append(what)) == folder
    assert left_in(folder) == ["first.txt", "second.bin"]
    assert verify.verify(TINY) == []
    assert seen[-1] == ("second.bin", 70_000, 70_000)
    (folder / "first.txt").write_bytes(b"spoilt")
    fetch.fetch(at(base))  # the bad one again, and only that
    assert requests == ["/first.txt", "/second.bin", "/first.txt"]
    assert verify.verify(TINY) == []


def test_wrong_contents_are_removed_and_named(server, folder):
    base, _, served = server
    other = FIRST[:-1] + b"?"
    (served / "first.txt").write_bytes(other)
    with pytest.raises(fetch.Refused) as caught:
        fetch.fetch(at(base))
    assert hashlib.sha256(other).hexdigest() in str(caught.value)
    assert hashlib.sha256(FIRST).hexdigest() in str(caught.value)
    assert left_in(folder) == []
    (served / "first.txt").write_bytes(FIRST + b"more")
    with pytest.raises(fetch.Refused, match="larger than the 28,000 bytes"):
        fetch.fetch(at(base))
    (served / "first.txt").write_bytes(FIRST[:100])
    with pytest.raises(fetch.Refused, match="ended after 100 of the 28,000 bytes"):
        fetch.fetch(at(base))
    (served / "first.txt").unlink()
    with pytest.raises(ConnectionError, match=r"first\.txt: the server says 404"):
        fetch.fetch(at(base))
    assert left_in(folder) == []


def test_only_https_also_after_a_redirection(server, folder, monkeypatch):
    base, _, _ = server
    with pytest.raises(fetch.Refused, match=r"'http://localhost:1/first\.txt': only https"):
        fetch.fetch(at("http://localhost:1/"))
    with pytest.raises(fetch.Refused, match=r"'http://localhost:1/first\.txt': only https"):
        fetch.fetch(at(base + "away/"))
    monkeypatch.delenv("SSL_CERT_FILE")  # a certificate nobody vouches for
    with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        fetch.fetch(at(base))
    assert left_in(folder) == []


def test_no_address_and_no_room(tmp_path, monkeypatch):
    with pytest.raises(fetch.Refused, match=r"'tiny' has no address to fetch it from\. Ask us\."):
        fetch.fetch(TINY)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NOISYACT_DATA", str(tmp_path / "file"))
    with pytest.raises(fetch.Refused, match="cannot write to"):
        fetch.fetch(at("https://localhost:1/"))


FETCH = """
import sys
sys.path.insert(0, sys.argv[2])
from test_data import at, fetch, verify
fetch.fetch(at(sys.argv[1]))
assert verify.verify(at(sys.argv[1])) == []
"""


def test_two_processes_at_once_fetch_once(server, folder):
    base, requests, _ = server
    command = [sys.executable, "-c", FETCH, base, str(Path(__file__).parent)]
    both = [subprocess.Popen(command, env=os.environ.copy()) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert requests == ["/first.txt", "/second.bin"]
    assert left_in(folder) == ["first.txt", "second.bin"]


# --- archives ----------------------------------------------------------------------------------------------------


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


# --- IDX ---------------------------------------------------------------------------------------------------------


def idx_bytes(values, *sizes):
    return bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + values


def test_idx_reads_plain_and_compressed(tmp_path):
    data = idx_bytes(bytes(range(24)), 4, 3, 2)
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "a.gz").write_bytes(gzip.compress(data))
    for name in ("a", "a.gz"):
        read = idx.read(tmp_path / name, 3)
        assert read.shape == (4, 3, 2)
        assert read.flatten().tolist() == list(range(24))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "begins with nothing, not 00 00 08 01"),
        (idx_bytes(b"abcd", 2, 2), "begins with 00 00 08 02, not 00 00 08 01"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 1, 0, 0, 0, 0]), "begins with 00 00 0d 01"),
        (bytes([0, 0, 8, 1, 0, 0]), "ends within its header, after 6 bytes"),
        (idx_bytes(b"abc", 4), r"says \(4,\), 4 bytes, but it holds 3"),
        (idx_bytes(b"abcde", 4), r"says \(4,\), 4 bytes, but it holds more than 4"),
        (idx_bytes(b"", 0), "allowed are 1 to"),
        (idx_bytes(b"abc", 4_000_000_000), "allowed are 1 to"),
        (idx_bytes(b"abc", 200_000_000), "200,000,000 bytes, but it holds 3"),
    ],
)
def test_idx_names_what_is_wrong(data, said, tmp_path):
    for name, content in (("labels", data), ("labels.gz", gzip.compress(data))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name}: .*{said}"):
            idx.read(tmp_path / name, 1)


def test_idx_with_a_broken_gzip(tmp_path):
    whole = gzip.compress(idx_bytes(random.Random(0).randbytes(1000), 1000))
    path = tmp_path / "labels.gz"
    for data in (whole[:500], whole[:-3], b"not gzip", whole[:-8] + bytes(8)):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="not a whole gzip file"):
            idx.read(path, 1)


def test_idx_fuzzed(tmp_path):
    draw = random.Random(2)
    path = tmp_path / "images"
    good = idx_bytes(bytes(60), 5, 4, 3)
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(20)] = draw.randrange(256)
        path.write_bytes(data[: draw.randint(0, len(data))] if draw.random() < 0.5 else data)
        with contextlib.suppress(ValueError):
            assert idx.read(path, 3).numel() == 60

"""Data sets: found, checked, and fetched from a real https server; the IDX format."""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import http.server
import os
import random
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from data_cases import FIRST, SECOND, TINY, at, data_folder, file_of, left_in, set_of  # noqa: F401
from typer.testing import CliRunner

from noisyact_lab.cli.app import app
from noisyact_lab.data import catalog, fetch, idx, locate, verify

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


def test_a_truncated_file_is_not_present(folder):
    """The size shows it. The size of a text that the user compressed is unknown, so only verify() can tell."""
    folder.mkdir(parents=True)
    (folder / "second.bin").write_bytes(SECOND[:-1])
    assert (locate.status(TINY), locate.has_all(TINY)) == ("damaged (1 of 2 files)", False)
    (folder / "first.txt").write_bytes(FIRST)
    assert (locate.status(TINY), locate.has_all(TINY)) == ("damaged (1 of 2 files)", True)
    assert "has 69,999 bytes, not 70,000" in verify.verify(TINY)[0]
    (folder / "second.bin").write_bytes(SECOND)
    assert locate.status(TINY) == "present"
    (folder / "first.txt").unlink()
    (folder / "first.txt.xz").write_bytes(b"short")
    assert locate.status(TINY) == "present"


def test_data_commands_name_a_truncated_file(own_data):
    mnist = own_data / "mnist"
    mnist.mkdir(parents=True)
    for file in catalog.dataset("mnist").files:
        with (mnist / file.name).open("wb") as sparse:
            sparse.truncate(file.size - (file.name == "t10k-labels-idx1-ubyte.gz"))
    listed = CliRunner().invoke(app, ["data", "list"])
    assert next(line.split()[1:3] for line in listed.stdout.splitlines() if line.startswith("mnist")) == [
        "damaged",
        "(1",
    ]
    verified = CliRunner().invoke(app, ["data", "verify"])
    assert verified.exit_code == 1
    assert "t10k-labels-idx1-ubyte.gz has 4,541 bytes, not 4,542" in verified.stdout


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
    with pytest.raises(ConnectionError, match=r"first\.txt: the server returned 404"):
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
from data_cases import at
from noisyact_lab.data import fetch, verify
fetch.fetch(at(sys.argv[1]))
assert verify.verify(at(sys.argv[1])) == []
"""


def test_two_processes_at_once_fetch_once(server, folder):
    base, requests, _ = server
    command = [sys.executable, "-c", FETCH, base, str(Path(__file__).parents[2] / "support" / "lab")]
    both = [subprocess.Popen(command, env=os.environ.copy()) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert requests == ["/first.txt", "/second.bin"]
    assert left_in(folder) == ["first.txt", "second.bin"]


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
        (idx_bytes(b"abc", 4), r"states \(4,\), 4 bytes, but the file holds 3"),
        (idx_bytes(b"abcde", 4), r"states \(4,\), 4 bytes, but the file holds more than 4"),
        (idx_bytes(b"", 0), "allowed are 1 to"),
        (idx_bytes(b"abc", 4_000_000_000), "allowed are 1 to"),
        (idx_bytes(b"abc", 200_000_000), "200,000,000 bytes, but the file holds 3"),
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
        with pytest.raises(ValueError, match="not a valid gzip file"):
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

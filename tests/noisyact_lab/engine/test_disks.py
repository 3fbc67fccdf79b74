"""Full disks, read-only disks and invalid paths: a message, an exit code, and nothing is lost."""

import contextlib
import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import SET, SMOKE, noisyact
from damaged_cases import place, train
from run_cases import kept

from noisyact_lab.engine.job import Job
from noisyact_lab.engine.parallel import streams

RUN = [sys.executable, "-m", "noisyact_lab", "run", "unique", "--arm", "nan", *SMOKE, *SET, "--out"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    train(out)
    return out


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 16 kB, and a function that mounts it again otherwise."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", folder]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk can be mounted by root alone")
    yield folder, lambda how: subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_full_from_any_moment_on(tmp_path, whole, monkeypatch):
    """Every write calls fsync. It fails from the nth call on, and the run resumes once it succeeds again."""
    sync, count = os.fsync, iter(())

    def full(handle):
        if next(count, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")  # which names no file
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    for until in range(19):
        count = iter(range(until))
        said = train(tmp_path / "out", "--force", code=1).stderr
        assert f"noisyact: {place(tmp_path / 'out')}" in said
        assert ": No space left on device; make room on that disk. What was saved before is kept\n" in said
        assert not list(place(tmp_path / "out").rglob("*.part"))
        count = iter(range(10**6))
        train(tmp_path / "out")
        assert kept(place(tmp_path / "out")) == kept(place(whole)), until
    count = iter(range(19))
    train(tmp_path / "out", "--force")  # no more is ever written


def test_files_that_may_not_grow(tmp_path, whole):
    """The operating system's own refusal, in the middle of a write."""
    limit = (place(whole) / "checkpoints" / "000000012" / "tensors.safetensors").stat().st_size // 2
    done = subprocess.run(
        [*RUN, tmp_path], capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.endswith("checkpoints/000000004: File too large. What was saved before is kept\n")
    assert "Traceback" not in done.stderr
    train(tmp_path)
    assert kept(place(tmp_path)) == kept(place(whole))


def test_a_small_disk_and_a_read_only_one(small_disk, whole, tmp_path, monkeypatch):
    monkeypatch.setattr("noisyact_lab.report.page.drawn_figures", list)  # they take seconds, and need no disk
    disk, remount = small_disk
    assert f"{place(disk)}" in (said := train(disk, code=1).stderr)
    assert "No space left on device; make room on that disk" in said
    remount("size=1m")
    train(disk)
    assert kept(place(disk)) == kept(place(whole))
    remount("ro")
    assert "folder: " in train(disk).stdout  # it is finished, which can be read
    page = disk / "report.html"
    for command in (
        ["run", "unique", "--arm", "nan", *SMOKE, *SET, "--out", disk, "--force"],
        ["run", "unique", "--arm", "hard", *SMOKE, *SET, "--out", disk],
        ["report", disk, "-o", page],
    ):
        said = noisyact(*command, code=1).stderr
        assert f"noisyact: {disk}" in said
        assert "Read-only file system; choose a place that you may write to" in said
    assert kept(place(disk)) == kept(place(whole))
    # What a logger cannot write is no reason to end a run, nor to print what its thread was at.
    remount("rw")
    (disk / "events").mkdir()
    with contextlib.suppress(OSError), (disk / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    command = [*RUN, tmp_path / "out", "--log", f"tensorboard:{disk / 'events'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "is dropped, the run continues: OSError" in done.stderr
    assert "Traceback" not in done.stderr


def test_places_that_are_none(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("mine")
    said = train(file, code=1).stderr
    assert f"noisyact: {place(file)}: Not a directory; choose a place where a folder is or can be made" in said
    assert "/dev/null" in train("/dev/null", code=1).stderr
    monkeypatch.setattr("noisyact_lab.report.page.drawn_figures", list)
    (tmp_path / "runs").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for to, said in (
        (tmp_path, f"{tmp_path}: Is a directory; a plain file is needed there"),
        (file / "x", f"{file}: File exists; choose a place where a folder is"),
        (tmp_path / "pipe", f"{tmp_path / 'pipe'}: Not a plain file"),
    ):
        assert said in noisyact("report", tmp_path / "runs", "-o", to, code=1).stderr
    assert (tmp_path / "pipe").is_fifo()
    assert file.read_text() == "mine"
    (outcome,) = streams.run_all([Job("unique", "nan", "smoke", 0, file, "cpu")])
    assert outcome.error.startswith(f"{place(file)}: Not a directory; choose")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", [["--help"], ["list", "--json"]])
def test_output_that_nobody_can_write(command):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "noisyact_lab", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr

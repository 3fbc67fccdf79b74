"""The package installs: with a compiler, without one, from the sdist, and with a library that does not load."""

import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

from noisyact.ops.native import build as native_build

ROOT = Path(__file__).parent.parent
PRETRAINED = [
    path
    for path in (ROOT / "src" / "noisyact_lab" / "pretrained").glob("*")
    if path.suffix in (".json", ".safetensors")
]
CODE = (
    "import noisyact as na, torch; assert 'unpacked' in na.__file__, na.__file__;"
    "print(na.noisify(torch.nn.Sequential(torch.nn.Tanh()))(torch.ones(3, 3)).shape, na.backend_info())"
)


def build_wheel(where: Path, source: Path = ROOT, **environment: str) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(where)]
    subprocess.run([*command, str(source)], check=True, env=os.environ | environment, capture_output=True)
    (wheel,) = where.glob("*.whl")
    return wheel


def unpack(wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wheel.parent / "unpacked")
    return wheel.parent / "unpacked"


def installed(wheel: Path, where: Path) -> Path:
    """The Python of an empty environment with the wheel, installed by pip, and with this environment's torch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(where)], check=True)
    (packages,) = where.glob("lib/python*/site-packages")
    # Its folder alone: an editable noisyact there is a .pth file, which is not read.
    (packages / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(packages)]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)
    return where / "bin" / "python"


def run_from(unpacked: Path, code: str = CODE, **environment: str) -> str:
    """Run code in a process that has torch and this package, and no other installation of it."""
    shown = os.environ | {"PYTHONPATH": str(unpacked)} | environment
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=unpacked, env=shown).stdout


def quick_compiler(folder: Path) -> Path:
    """The C compiler with less optimisation, which takes a third of the time. Other tests use the optimised kernels."""
    script = folder / "cc"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(native_build.find_compiler())} "$@" -O1\n')
    script.chmod(0o755)
    return script


def test_wheel_without_a_compiler(tmp_path):
    wheel = build_wheel(tmp_path, PATH=str(tmp_path), CC="")
    assert wheel.name.endswith("py3-none-any.whl")
    unpacked = unpack(wheel)
    assert not list(unpacked.glob("noisyact/ops/native/libraries/*"))
    assert "torch operations are used" in run_from(unpacked)


@pytest.mark.long
@pytest.mark.skipif(native_build.find_compiler() is None, reason="needs a C compiler")
def test_wheel_of_the_sdist(tmp_path):
    """The sdist has all that a wheel with kernels and with types is made from, and nothing that is not source."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if name.endswith((".so", ".dll", ".dylib", ".pyc"))]
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    wheel = build_wheel(tmp_path, source, CC=str(quick_compiler(tmp_path)))
    assert wheel.stat().st_size < 3_000_000 + sum(path.stat().st_size for path in PRETRAINED)
    assert "-py3-none-" in wheel.name
    assert "any" not in wheel.name
    unpacked = unpack(wheel)
    assert {path.name for path in unpacked.glob("*/py.typed")} == {"py.typed"}
    assert len(list(unpacked.glob("*/py.typed"))) == 2
    assert len(list(unpacked.glob("noisyact/ops/native/libraries/*"))) == len(native_build.levels())
    for path in PRETRAINED:
        assert (unpacked / path.relative_to(ROOT / "src")).read_bytes() == path.read_bytes()
    code = CODE.replace("'unpacked' in", f"{str(tmp_path / 'empty')!r} in")
    command = [str(installed(wheel, tmp_path / "empty")), "-I", "-c", code]
    assert "compiled C kernels" in subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_citation_has_this_version():
    import yaml

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert f'version = "{citation["version"]}"' in (ROOT / "pyproject.toml").read_text()
    assert citation["license"] == "Apache-2.0"


def test_workflows_call_targets_that_exist():
    import yaml

    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = set()
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            assert job["runs-on"]
            for step in job["steps"]:
                assert ("uses" in step) != ("run" in step)
                called |= set(re.findall(r"make (\w+)", step.get("run", "")))
                scripts = re.findall(r"python (\S+\.py)", step.get("run", ""))
                assert all((ROOT / script).is_file() for script in scripts)
    assert called == {"test", "lint", "docs", "wheels"}
    assert called <= targets


FOREIGN = {"x86_64": 183, "amd64": 183, "aarch64": 62, "arm64": 62}  # the other processor's number in ELF files


def damaged(library: bytes, how: str) -> bytes:
    if how == "no library":
        return b"not a library at all\n" * 10
    if how == "cut off":
        return library[:100]
    number = FOREIGN[native_build.HERE.machine.lower()]
    return library[:18] + number.to_bytes(2, "little") + library[20:]


@pytest.mark.skipif(native_build.HERE.system != "Linux", reason="writes ELF files")
@pytest.mark.skipif(not native_build.library_path(native_build.levels()[-1]).exists(), reason="no library to damage")
def test_a_library_that_does_not_load(tmp_path):
    """The package says so once, names the reason, and computes with torch's operations."""
    baseline = native_build.library_path(native_build.levels()[-1]).read_bytes()
    code = CODE.replace("assert 'unpacked' in na.__file__, na.__file__;", "")
    for how, reason in (("no library", "invalid ELF header"), ("cut off", "cannot read file data"), ("foreign", "")):
        folder = tmp_path / how
        folder.mkdir()
        for level in native_build.levels():
            native_build.library_path(level, folder).write_bytes(damaged(baseline, how))
        said = run_from(ROOT / "src", code, NOISYACT_LIBRARIES=str(folder))
        (line,) = [line for line in said.splitlines() if line.startswith("torch.Size([3, 3]) cpu: ")]
        assert "does not load" in line
        assert reason in line
        assert line.endswith("; torch operations are used")


@pytest.mark.skipif(len(native_build.levels()) < 2, reason="one instruction set alone")
def test_the_next_library_is_used_if_one_does_not_load(tmp_path):
    code = CODE.replace("assert 'unpacked' in na.__file__, na.__file__;", "")
    first, *rest = native_build.levels()
    native_build.library_path(first, tmp_path).write_bytes(b"damaged")
    for level in rest:
        source = native_build.library_path(level)
        if not source.exists():
            pytest.skip("no library was compiled")
        native_build.library_path(level, tmp_path).write_bytes(source.read_bytes())
    said = run_from(ROOT / "src", code, NOISYACT_LIBRARIES=str(tmp_path))
    assert "compiled C kernels for" in said


def test_platforms_have_names_that_pip_knows():
    from packaging import tags

    names = set(native_build.PLATFORMS)
    assert names & set(tags.mac_platforms((14, 0), "arm64")) == {"macosx_11_0_arm64"}
    assert names & set(tags.mac_platforms((14, 0), "x86_64")) == {"macosx_10_15_x86_64"}
    for name, where in native_build.PLATFORMS.items():
        assert native_build.levels(where)
        suffix = native_build.library_path("generic", where=where).suffix
        assert suffix == (".dll" if name.startswith("win") else ".dylib" if name.startswith("mac") else ".so")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc compares the declarations of several files")
def test_the_program_of_the_emulators_declares_the_kernels_as_they_are(tmp_path):
    """release/kernels.c has declarations of its own: gcc compares them, and the program's results are finite."""
    release = runpy.run_path(str(ROOT / "release" / "emulated.py"))
    made = release["program"](["gcc", "-flto=1", "-Werror=lto-type-mismatch"], tmp_path / "kernels", optimised="-O1")
    found = release["results"]([str(made)])
    assert {name for name, _ in found} == {"normal", "matmul", "lstm", "gru", "rnn"}
    assert release["worst"](found, found) == 0


def test_release_tools_are_pinned():
    lines = [line for line in (ROOT / "release" / "requirements.txt").read_text().splitlines() if line[0] != "#"]
    assert all("==" in line for line in lines)
    assert lines == sorted(lines, key=str.lower)
    spec = importlib.util.spec_from_file_location("wheels", ROOT / "release" / "wheels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.platforms() == list(native_build.PLATFORMS)

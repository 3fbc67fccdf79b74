"""The project's own rules, and that it installs: with a compiler, and without one."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(ROOT.glob("src/**/*.py")) + sorted(ROOT.glob("tests/**/*.py")) + sorted(ROOT.glob("examples/*.py"))
LAYERS = [
    "extras", "tables", "compiling", "schemes", "pairs", "equations", "checkpointing", "noise", "ops", "backends",
    "sequences", "functional", "activations", "anneal", "scheduler", "saturating", "cell_noise", "cells", "recurrent",
    "inventory", "convert", "finite", "sightings", "diagnostics", "integrations", "models", "data", "experiments",
    "bench",
]  # fmt: skip


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_readable(path):
    assert len(path.read_text().splitlines()) <= 400
    assert path.stem not in ("utils", "helpers", "common", "misc")


def test_imports_point_one_way():
    """A module imports only from those before it in the list."""
    for path in ROOT.glob("src/noisyact/**/*.py"):
        here = path.relative_to(ROOT / "src" / "noisyact").parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("noisyact"):
                inside = node.module.split(".")[1:]
                names = inside[:1] or [alias.name for alias in node.names]
            for name in names:
                assert LAYERS.index(name) <= LAYERS.index(here), f"{path.name} imports {name}"


def build_wheel(where: Path, **environment: str) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(where),
        str(ROOT),
    ]
    subprocess.run(command, check=True, env=os.environ | environment, capture_output=True)
    (wheel,) = where.glob("*.whl")
    return wheel


def run_from(wheel: Path, code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=wheel.parent,
        env=os.environ | {"PYTHONPATH": str(wheel.parent / "unpacked")},
    ).stdout  # fmt: skip


CODE = (
    "import noisyact as na, torch; from noisyact.ops import native; assert 'unpacked' in na.__file__;"
    "print(na.noisify(torch.nn.Sequential(torch.nn.Tanh()))(torch.ones(3, 3)).shape, native.status())"
)


def test_wheel_with_and_without_a_compiler(tmp_path):
    import zipfile

    for name, environment in (("with", {}), ("without", {"PATH": str(tmp_path), "CC": ""})):
        where = tmp_path / name
        where.mkdir()
        wheel = build_wheel(where, **environment)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(where / "unpacked")
            libraries = [n for n in archive.namelist() if n.endswith(".so")]
        assert wheel.stat().st_size < 900_000
        said = run_from(wheel, CODE)
        if name == "with":
            assert libraries
            assert "-py3-none-" in wheel.name
            assert "any" not in wheel.name
            assert "compiled C kernels" in said
        else:
            assert not libraries
            assert wheel.name.endswith("py3-none-any.whl")
            assert "torch operations are used" in said


def test_version_is_one():
    import noisyact

    assert f'version = "{noisyact.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert re.search(rf"^## {re.escape(noisyact.__version__)}", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

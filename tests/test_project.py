"""The project's own rules."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(ROOT.glob("src/**/*.py")) + sorted(ROOT.glob("tests/**/*.py")) + sorted(ROOT.glob("examples/*.py"))
ROOMS = """
noisyact: extras text_table compiling schemes estimators pairs equations activation_checkpointing noise
noisyact.ops: native dispatch triton cuda deferred_leaf activation matmul attention
noisyact.ops.recurrent: types observer reference scan checks cpu gpu cell
noisyact: functional activations anneal
noisyact.recurrent: calls routing backends noise arguments state execution functional cells layers
noisyact: attention deferral conversion precompilation diagnostics integrations
noisyact_lab: data models gpu
noisyact_lab.engine: task experiment folder logging distributed job choice run parallel ray many_runs
noisyact_lab: analysis tasks experiments pretrained report bench site cli __main__
"""
"""Every room, in the order of imports: a module imports only from its own room and from rooms before it."""
ORDER = [
    f"{parent}.{name}"
    for parent, _, names in (line.partition(": ") for line in ROOMS.split("\n"))
    for name in names.split()
]
FACADES = {
    "noisyact",
    "noisyact.ops",
    "noisyact.recurrent",
    "noisyact.ops.recurrent",
    "noisyact_lab",
    "noisyact_lab.engine",
}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_readable(path):
    assert len(path.read_text().splitlines()) <= 400
    assert path.stem not in ("utils", "helpers", "common", "misc")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in ROOT.glob("src/**/*.py")}


def room_of(module: str) -> int:
    """The place of a module's room in the order; the longest name counts."""
    found = [room for room in ORDER if module == room or module.startswith(f"{room}.")]
    assert found, f"{module} is in no room of ROOMS"
    return ORDER.index(max(found, key=len))


def imports_of(path: Path) -> set[str]:
    """The modules of this project that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] in ("noisyact", "noisyact_lab")
        ):
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                found.add(inside if inside in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in MODULES}
    return found


@pytest.mark.parametrize("module", sorted(MODULES.keys() - FACADES))
def test_imports_point_one_way(module):
    for other in imports_of(MODULES[module]):
        if other in ("noisyact", "noisyact.recurrent"):
            assert module.startswith("noisyact_lab"), f"{module} imports the whole of {other}"
        elif other not in FACADES:
            assert room_of(other) <= room_of(module), f"{module} imports {other}, of a later room"


def test_no_experiment_imports_another():
    for module, path in MODULES.items():
        package, _, rest = module.partition("noisyact_lab.experiments.")
        if not package and rest:
            mine = rest.split(".")[0]
            if mine == "estimators":  # it asks its question of other experiments' networks
                continue
            others = {name.split(".")[2] for name in imports_of(path) if name.startswith("noisyact_lab.experiments.")}
            assert others <= {mine}, module


def test_the_library_needs_torch_and_no_laboratory():
    for module, path in MODULES.items():
        if module.split(".")[0] == "noisyact":
            assert not any(name.startswith("noisyact_lab") for name in imports_of(path)), module


def test_rooms_are_small():
    """A folder has about a dozen files."""
    for folder in {path.parent for path in (*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"))}:
        files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= (21 if "tests" in folder.parts else 15), folder


def test_version_is_one():
    import noisyact

    assert f'version = "{noisyact.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert re.search(rf"^## {re.escape(noisyact.__version__)}", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

import os
import signal

import pytest
import torch

from noisyact_lab.data import locate

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # every core has a worker: more threads would only wait for each other

# A suite that is started in the background has Ctrl-C switched off, for its children too, and some tests send one.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """The mark `gpu` is all that such a test needs."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def poisoned_memory(monkeypatch):
    """Every torch.empty comes full of NaN, so that an output a kernel forgets to write shows."""
    for name in ("empty", "empty_like"):
        original = getattr(torch, name)

        def poisoned(*args, original=original, **kwargs):
            tensor = original(*args, **kwargs)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        monkeypatch.setattr(torch, name, poisoned)


@pytest.fixture
def own_data(tmp_path, monkeypatch):
    """A folder that is looked in for data sets, and nowhere else."""
    monkeypatch.setenv("NOISYACT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data"


def _found(name):
    try:
        return locate.find(name)
    except locate.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def real_mnist():
    """Where MNIST's own files are; a test that asks is skipped where they are not."""
    return _found("mnist")


@pytest.fixture
def real_treebank():
    """Where the Treebank's own files are; a test that asks is skipped where they are not."""
    return _found("ptb")

import os
import signal

import pytest
import torch

from noisyact_lab.data import locate

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # pytest-xdist already has a worker for every core

# A process started in the background ignores SIGINT, and so do its children. Some tests send one.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Begin with the tests marked `long`, so that all workers end together; skip those marked `gpu` without one."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def one_thread():
    """The test runs on one thread, or sets their number itself; afterwards it is as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def poisoned_memory(monkeypatch):
    """Fill every torch.empty with NaN, to reveal an output that a kernel does not write."""
    for name in ("empty", "empty_like"):
        original = getattr(torch, name)

        def poisoned(*args, original=original, **kwargs):
            tensor = original(*args, **kwargs)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        monkeypatch.setattr(torch, name, poisoned)


@pytest.fixture
def own_data(tmp_path, monkeypatch):
    """A temporary folder that is the only place searched for data sets."""
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
    """The folder of the real MNIST. Tests that use it are skipped if it is missing."""
    return _found("mnist")


@pytest.fixture
def real_treebank():
    """The folder of the real Penn Treebank. Tests that use it are skipped if it is missing."""
    return _found("ptb")

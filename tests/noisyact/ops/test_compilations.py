"""What calls of recurrent layers compile, by Triton's compiler for a GPU that need not be present."""

import itertools
import threading

import pytest
import torch

import noisyact as na

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(triton.knobs.runtime.interpret, reason="the interpreter compiles nothing")
AHEAD, HERE = "noisyact-ahead", threading.main_thread().name
PROCESSORS = 132
DEVICES = itertools.count(1000)  # no device that is present, and for each test one without kernels


class Driver:
    """The driver of a GPU of compute capability 9.0 that launches nothing."""

    utils = None

    def __init__(self):
        self.device = next(DEVICES)

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return self.device

    def get_current_stream(self, _device):
        return 0

    def launcher_cls(self, _source, _metadata):
        return None


class Names(list):
    """Names of kernels and their threads, and the bytes of shared memory of the kernels that were launched."""

    shared: list


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """The kernels that have been compiled, each with the name of its thread."""
    from triton.runtime import driver

    from noisyact.ops.recurrent.gpu import launches, layers
    from noisyact.ops.triton import ahead
    from noisyact.ops.triton.launch import Launcher
    from noisyact.recurrent import execution

    names, shared = Names(), []
    names.shared = shared

    def listen(src, cache_hit, **_):
        if not cache_hit:
            names.append((threading.current_thread().name, src.name))

    def launch(self, grid, tensors, numbers):
        ahead.prepared()
        if self._ahead is not None:
            self._ahead.join()
        ahead.in_turns(self._kernel)
        self._compiled[self] = self._kernel.warmup(*tensors, *numbers, grid=grid, **self._constants)
        shared.append(self._compiled[self].metadata.shared)

    monkeypatch.setattr(driver, "_active", Driver())
    monkeypatch.setattr(triton.knobs.compilation, "listener", listen)
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(Launcher, "__call__", launch)
    monkeypatch.setattr(execution.backends, "choose", lambda *_: "triton")
    for module in (launches, layers):
        monkeypatch.setattr(module, "processors", lambda _: PROCESSORS)
    launches._launcher.cache_clear()
    yield names
    finish()
    launches._launcher.cache_clear()


def finish():
    for thread in threading.enumerate():
        if thread.name == AHEAD:
            thread.join()


def train(layer, steps, batch, final=False):
    y, state = layer(torch.randn(steps, batch, layer.input_size))
    state = state[0] if isinstance(state, tuple) else state
    (y.sum() + state.sum() if final else y.sum()).backward()
    finish()


@pytest.mark.parametrize("make", [na.NoisyLSTM, na.NoisyGRU])
def test_backward_is_compiled_beside_forward(compiled, make):
    layer = make(20, 24)
    train(layer, 5, 3)
    assert sorted(compiled) == [(HERE, "forward_kernel"), (AHEAD, "backward_kernel")]
    compiled.clear()
    train(layer, 7, 2)  # other sizes that are divided in the same way
    assert compiled == []


def test_layers_share_kernels(compiled):
    """Each layer has its own part of the buffers, at addresses that are multiples of different numbers."""
    train(na.NoisyLSTM(330, 330, 2), 2, 3)
    assert sorted(compiled) == [(HERE, "forward_kernel"), (AHEAD, "backward_kernel")]


def test_another_gradient_needs_another_kernel(compiled):
    train(na.NoisyRNN(5, 7), 3, 2, final=True)
    assert sorted(compiled) == [(HERE, "backward_kernel"), (HERE, "forward_kernel"), (AHEAD, "backward_kernel")]


@pytest.mark.parametrize(
    ("make", "batch", "hidden", "tf32"),
    [(na.NoisyLSTM, 400, 200, True), (na.NoisyGRU, 512, 256, False), (na.NoisyRNN, 40, 1000, False)],
)
def test_programs_of_many_rows_fit_the_shared_memory(compiled, make, batch, hidden, tf32, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    train(make(hidden, hidden), 2, batch)
    assert len(compiled.shared) == 2
    assert max(compiled.shared) <= 227 * 2**10


def test_errors_are_left_to_the_launch():
    from noisyact.ops.triton import ahead

    class Kernel:
        ASTSource, cache_key = object, ""

        def warmup(self, *_, **__):
            raise RuntimeError

    thread = ahead.compile_ahead(Kernel(), (torch.float32,), {})
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()

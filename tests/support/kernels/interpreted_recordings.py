"""Recorded loops over the steps, with functions in the place of CUDA's: test_interpreted_kernels.py starts these.

A capture keeps the calls that C makes on the capturing stream, and a replay makes them.
"""

import ctypes

import pytest
import torch
from interpreted_routine import HANDLE, LAUNCH, MULTIPLY, STREAM, Cuda

from noisyact.ops import native
from noisyact.ops.cuda import entry_points, recordings
from noisyact.ops.recurrent.gpu.steps import routine
from noisyact.ops.recurrent.gpu.steps.routine import Place, Product, Routine
from noisyact.ops.recurrent.gpu.steps.timeline import timeline

pytestmark = pytest.mark.skipif(native.library() is None, reason="there is no C compiler here")
OWN, GRAPH = 1000, 2000


class Recorder(Cuda):
    """CUDA with captures. `fails` names a function that returns an error."""

    def __init__(self):
        super().__init__()
        self.calls, self.graphs, self.capturing, self.stream, self.fails = [], {}, None, STREAM, ""
        self.destroyed, self.memory = [], None
        self.functions = MULTIPLY(self.product), LAUNCH(self.launch)
        types = recordings._DRIVER | recordings._CUBLAS
        self.addresses = {"cublasGemmEx": self.functions[0], "cuLaunchKernel": self.functions[1]}
        for name, arguments in types.items():
            self.addresses[name] = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(self.named(name))

    def named(self, name):
        def call(*arguments):
            self.calls.append(name)
            if name != self.fails:
                return getattr(self, name)(*arguments)
            self.capturing = None  # an error ends a capture too
            return 9

        return call

    def product(self, *arguments):
        if self.capturing is None:
            assert self.stream == STREAM
            return self.multiply(*arguments)
        assert self.stream == OWN
        assert self.memory
        numbers = [ctypes.c_float.from_address(arguments[place]).value for place in (6, 13)]  # on the stack of C
        self.capturing.append((arguments, numbers))
        return self.status

    def cuStreamCreate(self, to, flags):
        assert flags == 1
        ctypes.c_void_p.from_address(to).value = OWN
        return 0

    def cuStreamBeginCapture_v2(self, stream, mode):
        assert (stream, mode, self.capturing) == (OWN, 2, None)
        self.capturing = []
        return 0

    def cuStreamEndCapture(self, stream, to):
        assert stream == OWN
        number = GRAPH + len(self.graphs)
        self.graphs[number], self.capturing = self.capturing, None
        ctypes.c_void_p.from_address(to).value = number
        return 0

    def cuGraphInstantiateWithFlags(self, to, graph, flags):
        ctypes.c_void_p.from_address(to).value = graph
        return 0

    def cuGraphLaunch(self, graph, stream):
        assert stream == STREAM
        for arguments, (alpha, beta) in self.graphs[graph]:
            arguments = list(arguments)
            kept = ctypes.c_float(alpha), ctypes.c_float(beta)
            arguments[6], arguments[13] = map(ctypes.addressof, kept)
            self.multiply(*arguments)
        return 0

    def cuGraphDestroy(self, graph):
        return 0

    def cuGraphExecDestroy(self, graph):
        self.destroyed.append(graph)
        return 0

    def cublasSetStream_v2(self, handle, stream):
        assert handle == HANDLE
        self.stream, self.memory = stream, None
        return 0

    def cublasSetWorkspace_v2(self, handle, address, size):
        self.memory = address, size
        return 0

    def blas_handle(self):
        self.stream, self.memory = STREAM, "torch's"
        return HANDLE


@pytest.fixture
def cuda(monkeypatch):
    found = Recorder()
    addresses = {name: ctypes.cast(one, ctypes.c_void_p).value for name, one in found.addresses.items()}
    monkeypatch.setattr(entry_points, "cublas", addresses.get)
    monkeypatch.setattr(entry_points, "driver", addresses.get)
    monkeypatch.setattr(torch.cuda, "current_blas_handle", found.blas_handle)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: STREAM, raising=False)
    monkeypatch.setattr(recordings, "_memory", lambda device, stream: torch.empty(64, dtype=torch.uint8))
    monkeypatch.setattr(recordings, "_FEWEST_CALLS", 3)
    monkeypatch.setattr(routine.Routine, "_may_run_in_c", lambda self: True)
    for cached in (recordings.available, recordings._own_stream, recordings._function):
        cached.cache_clear()
    recordings._recordings.clear()
    recordings._seen.clear()
    yield found
    for cached in (recordings.available, recordings._own_stream, recordings._function):
        cached.cache_clear()
    recordings._recordings.clear()
    recordings._seen.clear()


def products(w, to, of):
    """A loop of four steps: rows t of `to` become rows t of `of` times w."""
    operation = Product(Place(to, ("offset",)), Place(of, ("offset",)), w, False, "size")
    return Routine([operation], timeline((2, 2, 2, 2), False))


@pytest.fixture
def tensors():
    return torch.randn(3, 5), torch.zeros(8, 5), torch.randn(8, 3)


def ran(routine_, to, of, w):
    """Run all steps, and check the result for new values in the same memory."""
    of.copy_(torch.randn(8, 3))
    to.fill_(float("nan"))
    routine_.run(slice(0, 4))
    torch.testing.assert_close(to, of @ w)


def test_the_second_call_is_recorded_and_the_third_only_replayed(cuda, tensors):
    w, to, of = tensors
    for number in range(1, 4):
        ran(products(w, to, of), to, of, w)  # each call of a layer has a routine of its own
        assert cuda.calls.count("cuGraphLaunch") == max(0, number - 1)
        assert cuda.calls.count("cuStreamBeginCapture_v2") == min(1, number - 1)
        assert cuda.stream == STREAM
        assert cuda.memory == "torch's"


def test_other_addresses_settings_and_parts_are_other_calls(cuda, tensors, monkeypatch):
    w, to, of = tensors
    for _ in range(2):
        ran(products(w, to, of), to, of, w)
    assert len(recordings._recordings) == 1
    other = torch.randn(3, 5)
    ran(products(other, to, of), to, of, other)
    monkeypatch.setattr(torch._C, "_get_cublas_allow_tf32", lambda: True)
    ran(products(w, to, of), to, of, w)
    to.fill_(7.0)
    products(w, to, of).run(slice(0, 3))
    assert (to[6:] == 7.0).all()
    assert cuda.calls.count("cuGraphLaunch") == 1


def test_nothing_is_recorded_within_a_capture_of_the_caller(cuda, tensors, monkeypatch):
    w, to, of = tensors
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for _ in range(3):
        ran(products(w, to, of), to, of, w)
    assert cuda.calls == []


def test_nothing_is_recorded_if_cublas_has_other_memory(cuda, tensors, monkeypatch):
    w, to, of = tensors
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    for _ in range(3):
        ran(products(w, to, of), to, of, w)
    assert cuda.calls == []


@pytest.mark.parametrize(
    "fails", ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cublasSetWorkspace_v2"]
)
def test_what_cuda_does_not_record_runs_step_by_step(cuda, tensors, fails):
    w, to, of = tensors
    cuda.fails = fails
    for _ in range(4):
        ran(products(w, to, of), to, of, w)
    assert cuda.calls.count("cuStreamBeginCapture_v2") == 1  # it is not tried again
    assert "cuGraphLaunch" not in cuda.calls
    assert (cuda.stream, cuda.memory) == (STREAM, "torch's")


def test_a_failed_replay_raises(cuda, tensors):
    w, to, of = tensors
    cuda.fails = "cuGraphLaunch"
    ran(products(w, to, of), to, of, w)
    with pytest.raises(RuntimeError, match="failed with error 9"):
        products(w, to, of).run(slice(0, 4))


def test_the_oldest_recording_is_given_back(cuda, tensors, monkeypatch):
    w, to, of = tensors
    monkeypatch.setattr(recordings, "_MOST_RECORDINGS", 2)
    weights = [w, torch.randn(3, 5), torch.randn(3, 5)]
    for own in weights:
        for _ in range(2):
            ran(products(own, to, of), to, of, own)
    assert cuda.destroyed == [GRAPH]
    recordings.clear()
    assert sorted(cuda.destroyed) == [GRAPH, GRAPH + 1, GRAPH + 2]


@pytest.mark.parametrize(("limit", "calls"), [("_MOST_CALLS", 3), ("_FEWEST_CALLS", 5)])
def test_loops_that_are_too_long_or_too_short_are_not_recorded(cuda, tensors, monkeypatch, limit, calls):
    w, to, of = tensors
    monkeypatch.setattr(recordings, limit, calls)
    for _ in range(3):
        ran(products(w, to, of), to, of, w)
    assert "cuStreamBeginCapture_v2" not in cuda.calls

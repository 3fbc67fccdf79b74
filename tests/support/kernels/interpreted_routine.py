"""The loop over the steps in C, with functions in the place of CUDA's: test_interpreted_kernels.py starts these.

The product is computed in the memory of the CPU, and a launch runs the kernel in Triton's interpreter.
"""

import ctypes

import pytest
import torch
from interpreted_steps import ALL, CASES, DOUBLE, close, poisoned  # noqa: F401  # the fixture
from recurrent_cases import Case

from noisyact.ops import native
from noisyact.ops.cuda import entry_points
from noisyact.ops.recurrent.gpu.steps import routine
from noisyact.ops.recurrent.gpu.steps.forward import POSITION
from noisyact.ops.triton.launch import Binary, Prepared

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array"),
    pytest.mark.skipif(native.library() is None, reason="there is no C compiler here"),
]
NUMBER, ADDRESS, COUNT = ctypes.c_int, ctypes.c_void_p, ctypes.c_uint
MULTIPLY = ctypes.CFUNCTYPE(
    NUMBER, ADDRESS, *[NUMBER] * 5, ADDRESS, *[ADDRESS, NUMBER, NUMBER] * 2, *[ADDRESS] * 2, *[NUMBER] * 4
)
LAUNCH = ctypes.CFUNCTYPE(NUMBER, ADDRESS, *[COUNT] * 7, ADDRESS, ctypes.POINTER(ADDRESS), ctypes.POINTER(ADDRESS))
DTYPES = {numbers: dtype for dtype, numbers in routine._DTYPES.items()}
HANDLE, STREAM = 77, 78


class Cuda:
    """What CUDA's two functions have been called for. The next call returns `status`."""

    def __init__(self):
        self.kernels, self.products, self.launches, self.status = [], 0, 0, 0
        self.functions = MULTIPLY(self.multiply), LAUNCH(self.launch)

    def matrix(self, address, rows, columns, width, dtype):
        """A matrix as cuBLAS stores it: columns one after the other, `width` numbers apart."""
        assert width >= rows
        size = (columns - 1) * width + rows
        bytes_ = (ctypes.c_char * (size * dtype.itemsize)).from_address(address)
        return torch.frombuffer(bytes_, dtype=dtype).as_strided((rows, columns), (1, width))

    def multiply(
        self, handle, turn_a, turn_b, m, n, k, alpha, a, kind_a, a_width, b, kind_b, b_width, beta, c, kind_c, c_width,
        sums, algorithm,
    ):  # fmt: skip
        """cublasGemmEx."""
        assert (handle, turn_b, algorithm) == (HANDLE, 0, 99)
        assert kind_a == kind_b == kind_c
        dtype = DTYPES[kind_a, sums]
        real = ctypes.c_double if dtype is torch.float64 else ctypes.c_float
        alpha, beta = (real.from_address(number).value for number in (alpha, beta))
        left = self.matrix(a, *((k, m) if turn_a else (m, k)), a_width, dtype)
        to, right = self.matrix(c, m, n, c_width, dtype), self.matrix(b, k, n, b_width, dtype)
        product = alpha * ((left.T if turn_a else left) @ right)
        to.copy_(product + beta * to if beta else product)
        self.products += 1
        return self.status

    def launch(self, function, across, down, deep, threads, y, z, shared, stream, parameters, extra):
        """cuLaunchKernel."""
        assert (deep, threads, y, z, shared, stream) == (1, 96, 1, 1, 5, STREAM)
        kernel, values = self.kernels[function - 1]
        found = [ctypes.c_uint64.from_address(parameters[i]).value for i in range(len(values) + len(POSITION) + 1)]
        assert found[: len(values)] == values
        assert found[-1] == 0
        kernel((across, down), *(number & 0xFFFFFFFF for number in found[len(values) : -1]))
        self.launches += 1
        return self.status

    def binary(self, kernel, last):
        """In the place of Prepared.binary."""
        values = [value for value in kernel.first if value is not None]
        self.kernels.append((kernel, values))
        return Binary(len(self.kernels), 96, 5, values, len(values) + len(POSITION) + 1)


@pytest.fixture
def cuda(monkeypatch):
    found = Cuda()
    multiply, launch = (ctypes.cast(function, ctypes.c_void_p).value for function in found.functions)
    monkeypatch.setattr(entry_points, "cublas", {"cublasGemmEx": multiply}.get)
    monkeypatch.setattr(entry_points, "driver", {"cuLaunchKernel": launch}.get)
    monkeypatch.setattr(Prepared, "binary", lambda kernel, last: found.binary(kernel, last))
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: HANDLE)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: STREAM, raising=False)
    monkeypatch.setattr(routine.Routine, "_may_run_in_c", lambda self: True)
    monkeypatch.setattr(routine, "_FEWEST", 1)
    return found


@pytest.mark.parametrize(
    "case",
    [
        CASES[0],
        CASES[2],
        CASES[6],
        CASES[7],
        *CASES[11:14],
        CASES[16],
        CASES[20],
        Case("gru", 4, 3, 1, **DOUBLE, **ALL),
    ],
    ids=lambda case: f"{case.kind}-{case.hidden}-{case.dtype}-{case.projection}-{case.features()}",
)
def test_layers_by_the_loop_in_c_equal_the_reference(case, cuda):
    bound = 1e-10 if case.dtype is torch.float64 else 2e-5
    right, wide = case.reference()
    mine = case.by_kernels()
    for one, other in zip(mine, right, strict=True):
        close(one, other, "output", bound)
    right_gradients = case.gradients(right, wide)
    for name, gradient in case.gradients(mine, case.leaves()).items():
        close(gradient, right_gradients[name], name, bound)
    steps = len([size for size in case.sizes if size])
    assert cuda.launches >= 2 * steps
    assert cuda.products >= 2 * (steps - 1)


def test_sixteen_bits_by_the_loop_in_c(cuda):
    case = Case("lstm", 3, 3, 5, dtype=torch.bfloat16)
    right, _ = case.reference()
    for one, other in zip(case.by_kernels(), right, strict=True):
        close(one, other, "output", 5e-2)
    assert cuda.products == 3  # at the first step that of the given state


def test_a_failure_of_cublas_raises(cuda):
    cuda.status = 14
    with pytest.raises(RuntimeError, match="cuBLAS failed with status 14"):
        Case("rnn_tanh", 3, 3, 5).by_kernels()


def test_a_failure_of_a_launch_raises(cuda):
    cuda.status = 701
    with pytest.raises(RuntimeError, match="error 701"):
        Case("rnn_tanh", 3, 3, 5, state=False).by_kernels()

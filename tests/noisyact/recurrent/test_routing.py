"""The rule by which "auto" chooses between noisyact's kernels and torch's own layer."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import noisyact as na
from noisyact.ops import native
from noisyact.ops.recurrent.gpu.plan import in_one_launch
from noisyact.recurrent.layers import NoisyRecurrent
from noisyact.recurrent.routing import BATCHES, MANY_STEPS, why_torch_on_cpu, why_torch_on_gpu

H200 = 132  # multiprocessors

# kind, dtype, steps, batch, units, whether TF32 is on, and the reason for torch; None if the kernels are faster.
GPU = [
    ("lstm", torch.float32, 20, 20, 200, True, None),
    ("gru", torch.float32, 35, 20, 650, True, None),
    ("lstm", torch.bfloat16, 35, 20, 1500, True, None),
    ("gru", torch.float16, 200, 64, 1024, True, None),
    ("lstm", torch.bfloat16, 200, 64, 1024, False, None),  # TF32 is about float32 only
    ("lstm", torch.float32, 126, 27, 693, False, None),
    ("lstm", torch.float32, 4, 13, 616, True, None),
    ("gru", torch.bfloat16, 44, 135, 351, True, None),
    ("gru", torch.bfloat16, 1, 1932, 24, False, None),
    ("rnn_tanh", torch.bfloat16, 2, 119, 87, True, None),
    ("rnn_tanh", torch.float32, 171, 3, 609, False, None),
    ("lstm", torch.float32, 1, 283, 2057, False, None),  # too large for one launch
    ("lstm", torch.float16, 58, 343, 660, True, None),
    ("gru", torch.float32, 20, 20, 128, True, "nn.GRU in tf32 for 128 units, 20 steps and 20 rows"),
    ("lstm", torch.float16, 20, 20, 130, True, "nn.LSTM in float16 for 130 units"),
    ("lstm", torch.bfloat16, 20, 20, 1501, True, "nn.LSTM in bfloat16 for 1,501 units"),
    ("lstm", torch.float32, 2, 20, 200, True, "nn.LSTM in tf32 for 200 units, 2 steps"),
    ("gru", torch.float32, 12, 20, 200, True, "nn.GRU in tf32 for 200 units, 12 steps"),
    ("gru", torch.float32, 20, 20, 200, False, "nn.GRU in float32 for 200 units"),
    ("lstm", torch.float64, 20, 20, 200, False, "nn.LSTM in float64"),
    ("lstm", torch.float32, 20, 65, 200, True, "nn.LSTM in tf32 for 200 units, 20 steps and 65 rows"),
    ("lstm", torch.float32, 20, 130, 1500, True, "1,500 units and 130 rows, which are too many for one launch"),
    ("rnn_tanh", torch.float32, 20, 20, 128, True, "nn.RNN in tf32"),
    ("rnn_tanh", torch.bfloat16, 20, 20, 734, True, "nn.RNN in bfloat16 for 734 units"),
    ("rnn_relu", torch.bfloat16, 20, 20, 128, True, "nn.RNN with relu"),
]


@pytest.mark.parametrize("case", GPU, ids=str)
def test_the_rule_for_a_gpu(case):
    *arguments, tf32, why = case
    found = why_torch_on_gpu(*arguments, tf32, H200)
    assert found is None if why is None else why in found
    assert "projection" in why_torch_on_gpu(*arguments, tf32, H200, True)
    if why is None and in_one_launch(arguments[0], *arguments[3:5], arguments[1].itemsize, H200):
        # Where programs cannot wait for each other, each step is a launch.
        assert "one launch" in why_torch_on_gpu(*arguments, tf32, 0)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["lstm", "gru", "rnn_tanh"]), st.integers(1, 1000), st.integers(1, 2048), st.integers(8, 4096),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]), st.booleans(),
)  # fmt: skip
def test_few_batches_and_many_steps_stand_for_all(kind, steps, batch, hidden, dtype, tf32):
    """accelerate asks about these batches only."""
    if why_torch_on_gpu(kind, dtype, steps, batch, hidden, tf32, H200) is None:
        found = [why_torch_on_gpu(kind, dtype, MANY_STEPS, few, hidden, tf32, H200) for few in BATCHES]
        assert None in found


@pytest.mark.parametrize(
    ("kind", "dtype", "steps", "why"),
    [
        ("gru", torch.float32, 4, None),
        ("gru", torch.float32, 3, "nn.GRU is faster for fewer than 4 steps"),
        ("rnn_tanh", torch.float32, 12, None),
        ("rnn_relu", torch.float32, 11, "nn.RNN is faster for fewer than 12 steps"),
        ("lstm", torch.float32, 100, "nn.LSTM is as fast"),
        ("gru", torch.bfloat16, 100, "float32, not in bfloat16"),
    ],
)
def test_the_rule_for_a_cpu(kind, dtype, steps, why):
    found = why_torch_on_cpu(kind, dtype, steps)
    assert found is None if why is None else why in found


@pytest.fixture
def paths(monkeypatch):
    """The names of the paths that layers take, in order."""
    taken = []
    for name, path in (("_torch_layers", "torch"), ("_layers", "kernel")):
        method = getattr(NoisyRecurrent, name)
        monkeypatch.setattr(
            NoisyRecurrent, name, lambda *args, method=method, path=path: taken.append(path) or method(*args)
        )
    return taken


def test_layers_follow_the_rule(paths):
    soft = {"hard": False, "noise": None}
    calls = [
        (na.NoisyGRU(4, 5, **soft), torch.randn(4, 3, 4), "kernel"),
        (na.NoisyGRU(4, 5, **soft), torch.randn(3, 3, 4), "torch"),
        (na.NoisyGRU(4, 5, **soft), torch.randn(9, 4), "kernel"),
        (na.NoisyGRU(4, 5, **soft), pack_sequence([torch.randn(4, 4), torch.randn(1, 4)]), "kernel"),
        (na.NoisyGRU(4, 5, **soft, batch_first=True), torch.randn(20, 3, 4), "torch"),
        (na.NoisyGRU(4, 5, **soft).double(), torch.randn(9, 3, 4).double(), "torch"),
        (na.NoisyGRU(4, 5, **soft).bfloat16(), torch.randn(9, 3, 4).bfloat16(), "torch"),
        (na.NoisyGRU(4, 5, **soft, backend="reference"), torch.randn(1, 3, 4), "kernel"),
        (na.NoisyRNN(4, 5, **soft), torch.randn(12, 3, 4), "kernel"),
        (na.NoisyRNN(4, 5, **soft), torch.randn(11, 3, 4), "torch"),
        (na.NoisyLSTM(4, 5, **soft), torch.randn(50, 3, 4), "torch"),
        (na.NoisyLSTM(4, 5, **soft, proj_size=2), torch.randn(4, 3, 4), "kernel"),
        (na.NoisyLSTM(4, 5, **soft, proj_size=2), torch.randn(3, 3, 4), "torch"),
        (na.NoisyLSTM(4, 5, noise=None), torch.randn(1, 3, 4), "kernel"),
    ]
    if native.library() is None:
        calls = [(layer, x, path) for layer, x, path in calls if path == "torch"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LSTM with projections")
        for layer, x, path in calls:
            paths.clear()
            layer(x)
            assert paths == [path], (layer, path)


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_autocast_on_a_cpu_is_torchs(kind, paths):
    """Whose result is float32 for a GRU and bfloat16 for an LSTM."""
    theirs = getattr(nn, kind)(4, 5, 2)
    ours = getattr(na, f"Noisy{kind}")(4, 5, 2, hard=False, noise=None)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(20, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = ours(x)[0], theirs(x)[0]
    assert paths == ["torch"]
    assert found.dtype is expected.dtype
    assert torch.equal(found, expected)


def test_the_choice_is_explained():
    soft = {"hard": False, "noise": None}
    if native.library() is not None:
        assert "GRU: the C kernel, or torch's own layer for inputs" in na.backend_info(na.NoisyGRU(4, 5, **soft))
    assert "own layer, which computes the same function: nn.LSTM is as" in na.backend_info(na.NoisyLSTM(4, 5, **soft))
    assert (
        "own layer, which computes the same function: the C kernels were not found to be faster in float64"
        in na.backend_info(na.NoisyGRU(4, 5, **soft).double())
    )

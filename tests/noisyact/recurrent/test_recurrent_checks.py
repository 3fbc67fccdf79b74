"""Tensors that do not fit are named in an error; no kernel is given their addresses."""

import subprocess
import sys

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence

import noisyact as na
from noisyact.recurrent import functional

N = torch.randn
X = N(7, 3, 4)


def lstm(x=X, hx=None, w_ih=None, w_hh=None, b_ih=None, b_hh=None, **settings):
    w_ih, w_hh = N(20, 4) if w_ih is None else w_ih, N(20, 5) if w_hh is None else w_hh
    return functional.noisy_lstm(x, hx, w_ih, w_hh, b_ih, b_hh, **settings)


META = {"device": "meta"}
WRONG = {
    "too few rows of w_ih": (lambda b: lstm(w_ih=N(8, 4), backend=b), r"w_ih must be of shape \(20, 4\).*\(8, 4\)"),
    "too few rows of w_hh": (lambda b: lstm(w_hh=N(10, 5), backend=b), r"w_hh must be of shape \(20, 5\).*\(10, 5\)"),
    "a flat w_hh": (lambda b: lstm(w_hh=N(20), backend=b), "w_hh must be 2-D"),
    "width of w_ih": (lambda b: lstm(w_ih=N(20, 3), backend=b), r"w_ih must.*\(20, 3\)"),
    "width of x": (lambda b: lstm(x=N(7, 3, 9), backend=b), r"w_ih must be of shape \(20, 9\)"),
    "b_ih": (lambda b: lstm(b_ih=N(3), b_hh=N(20), backend=b), r"b_ih must.*\(3,\)"),
    "b_hh": (lambda b: lstm(b_ih=N(20), b_hh=N(20, 1), backend=b), r"b_hh must.*\(20, 1\)"),
    "batch of h": (lambda b: lstm(hx=(N(2, 5), N(3, 5)), backend=b), r"h must be of shape \(3, 5\).*\(2, 5\)"),
    "h that would broadcast": (lambda b: lstm(hx=(N(1, 5), N(3, 5)), backend=b), r"h must.*\(1, 5\)"),
    "width of c": (lambda b: lstm(hx=(N(3, 5), N(3, 6)), backend=b), r"c must.*\(3, 6\)"),
    "an LSTM's weights in a GRU": (
        lambda b: functional.noisy_gru(X, None, N(20, 4), N(20, 5), backend=b), r"w_ih must be of shape \(15, 4\)",
    ),
    "p": (lambda b: lstm(p=N(24), backend=b), "p must.*25 elements"),
    "p of integers": (lambda b: lstm(p=torch.ones(25, dtype=torch.int64), backend=b), "p must be.*floating point"),
    "seed of two": (lambda b: lstm(seed=torch.tensor([1, 2]), backend=b), "seed must.*int64"),
    "seed of floats": (lambda b: lstm(seed=torch.tensor(1.0), backend=b), "seed must.*int64"),
    "dtype of w_hh": (lambda b: lstm(w_hh=N(20, 5).double(), backend=b), "w_hh must.*float32.*float64"),
    "dtype of h": (lambda b: lstm(hx=(N(3, 5).half(), N(3, 5)), backend=b), "h must.*float32.*float16"),
    "no steps": (lambda b: lstm(x=N(0, 3, 4), backend=b), "at least one step"),
    "weights on meta": (lambda b: lstm(w_ih=N(20, 4, **META), backend=b), "w_ih must.*on cpu.*on meta"),
    "state on meta": (lambda b: lstm(hx=(N(3, 5, **META), N(3, 5)), backend=b), "h must.*on cpu.*on meta"),
    "p on meta": (lambda b: lstm(p=N(25, **META), backend=b), "p must.*on cpu.*on meta"),
    "layer on meta": (lambda b: na.NoisyLSTM(4, 5, backend=b, **META)(X), "w_ih must.*on cpu.*on meta"),
    "cell's c on meta": (
        lambda b: na.NoisyLSTMCell(4, 5, backend=b)(X[0], (N(3, 5), N(3, 5, **META))), "c must.*on cpu.*on meta",
    ),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_named(case, backend):
    call, named = WRONG[case]
    with pytest.raises(ValueError, match=named) as raised:
        call(backend)
    assert isinstance(raised.value, RuntimeError) or case == "no steps"  # as torch, which raises either


def test_integers_are_refused():
    with pytest.raises(TypeError, match="int64"):
        lstm(x=torch.ones(7, 3, 4, dtype=torch.int64))


@pytest.mark.parametrize("sizes", [[1, 3, 3], [3, -1, 5], [3, 2, 1], [3, 3, 3], [3, 2, 2, 0], [7, 0]])
@pytest.mark.parametrize("settings", [{}, {"backend": "reference"}, {"hard": False, "noise": None}])
def test_batch_sizes_of_a_packed_sequence(sizes, settings):
    with pytest.raises(ValueError, match="batch sizes"):
        na.NoisyLSTM(4, 5, **settings)(PackedSequence(N(7, 4), torch.tensor(sizes)))


def test_a_layer_wholly_on_the_meta_device_has_shapes():
    y, (h, c) = na.NoisyLSTM(4, 5, 2, device="meta")(X.to("meta"))
    assert (y.shape, h.shape, c.shape, y.device.type) == ((7, 3, 5), (2, 3, 5), (2, 3, 5), "meta")
    assert na.NoisyGRUCell(4, 5, device="meta")(X[0].to("meta")).shape == (3, 5)


def test_the_registered_operators_check_too():
    x, sizes, h, c, w_ih, w_hh = N(6, 4), torch.tensor([3, 3]), N(3, 5), N(3, 5), N(20, 4), N(20, 5)
    settings = ("lstm", "nah", "nah", True, torch.tensor(0.5), torch.tensor(0.5))
    op, backward = torch.ops.noisyact.recurrent_layer, torch.ops.noisyact.recurrent_layer_backward

    def run(x=x, sizes=sizes, h=h, c=c, w_ih=w_ih, w_hh=w_hh, p=None, w_hr=None, seed=None):
        return op(x, sizes, h, c, w_ih, w_hh, None, None, p, w_hr, seed, *settings, False)

    y, _, _, gates, extra, m = run()
    for wrong in (
        {"x": N(5, 4)}, {"x": N(6, 3)}, {"sizes": torch.tensor([3, 4])}, {"sizes": torch.tensor([4, 2])},
        {"h": N(2, 5)}, {"w_hh": N(20, 4)}, {"p": N(3)}, {"seed": torch.tensor([1, 2])}, {"w_hr": N(4, 5)},
        {"w_hr": N(5)}, {"w_hr": N(5, 5, 1)}, {"w_hr": N(5, 4)}, {"w_hr": N(5, 5).double()},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="must"):
            run(**wrong)

    def run_backward(dh=y, y=y, gates=gates, extra=extra, m=m, x=x, w_hr=None):
        weights = (w_ih, w_hh, None, None, w_hr, None)
        return backward(dh, None, None, y, gates, extra, m, x, sizes, h, c, *weights, *settings, False, True, True)

    assert len(run_backward()) == 11
    for wrong in (
        {"dh": N(5, 5)}, {"y": N(6, 4)}, {"gates": N(6, 10)}, {"extra": N(1, 5)}, {"x": N(5, 4)}, {"m": N(6, 5)},
        {"w_hr": N(5, 5)},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="must"):
            run_backward(**wrong)
    a, scale = N(3, 20), torch.tensor(0.5)
    cell = torch.ops.noisyact.recurrent_cell
    for given_a, given_c in ((N(3, 19), c), (a, N(2, 5)), (a, None)):
        with pytest.raises(ValueError, match=r"must|needs"):
            cell(given_a, None, None, given_c, None, None, scale, scale, "lstm", "nah", "nah", True)


UNDER_O = """
import torch
from torch.nn.utils import prune
import noisyact as na
from noisyact.recurrent import functional
layer, x = na.NoisyLSTM(4, 5), torch.randn(7, 3, 4)
expected = layer.eval()(x)[0]
prune.identity(layer, "weight_hh_l0")
if not torch.equal(layer(x)[0], expected):
    raise SystemExit("the pruned layer differs")
for call in (
    lambda: functional.noisy_lstm(x, None, torch.randn(8, 4), torch.randn(20, 5)),
    lambda: functional.noisy_gru(x, torch.randn(2, 5), torch.randn(15, 4), torch.randn(15, 5)),
):
    try:
        call()
    except ValueError:
        continue
    raise SystemExit("no error")
print("all checked")
"""


def test_the_checks_stay_under_python_O():
    done = subprocess.run([sys.executable, "-O", "-c", UNDER_O], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "all checked"), done.stderr

"""The GPU layers step by step: sizes beyond one wave of programs, projections, float64, graphs, compilation."""

import pytest
import torch
from recurrent_cases import Case

import noisyact as na
from noisyact.ops import native
from noisyact.ops.cuda import recordings
from noisyact.ops.recurrent.gpu import layers as gpu
from noisyact.ops.recurrent.gpu import plan as plans
from noisyact.ops.recurrent.gpu.steps import routine

pytestmark = pytest.mark.gpu
RULES = {"share": 0.2, "zoneout": (0.3, 0.2), "dropout": 0.4, "first_step": 7, "places": True}
BOUNDS = {
    torch.float64: (1e-10, 1e-10), torch.float32: (1e-4, 5e-3), torch.bfloat16: (5e-2, 0.4),
    torch.float16: (1e-2, 0.25),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _exact_products():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def off(mine, right):
    return ((mine.double() - right.double()).norm() / right.double().norm().clamp(min=1e-9)).item()


def compare(case, bounds=None):
    for_outputs, for_gradients = bounds or BOUNDS[case.dtype]
    right, wide = case.reference()
    mine = case.by_kernels()
    for one, other in zip(mine, right, strict=True):
        assert one.dtype is case.dtype
        assert off(one, other) <= for_outputs
    right_gradients = case.gradients(right, wide)
    for name, gradient in case.gradients(mine, case.leaves()).items():
        assert gradient.isfinite().all(), name
        if right_gradients[name].norm() > 1e-6:
            assert off(gradient, right_gradients[name]) <= for_gradients, name


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_large_layers_equal_the_reference(kind, dtype):
    compare(Case(kind, 3, 512, 1024, inputs=8, dtype=dtype, device="cuda"))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
def test_rows_of_any_width_equal_the_reference(kind, dtype):
    """Rows that are no multiple of 16 bytes, for which cuBLAS gets further units."""
    compare(Case(kind, 9, 520, 1021, inputs=13, dtype=dtype, device="cuda"))


def test_the_same_width_in_several_dtypes():
    """1,021 units become 1,024 in all of them. A kernel compiled for one would be wrong for another."""
    torch.backends.cudnn.allow_tf32 = True
    for dtype in (torch.float16, torch.float32, torch.bfloat16, torch.float32):
        compare(Case("lstm", 9, 520, 1021, inputs=13, dtype=dtype, device="cuda"), BOUNDS[torch.bfloat16])


@pytest.mark.skipif(native.library() is None, reason="the C kernels are not compiled here")
@pytest.mark.parametrize(
    "case",
    [
        {"kind": "lstm", "dtype": torch.bfloat16},
        {"kind": "gru", "dtype": torch.float16, "packed": True, "reverse": True},
        {"kind": "rnn_tanh"},
        {"kind": "lstm", "dtype": torch.float64, "projection": 72, **RULES},
    ],
    ids=lambda case: f"{case['kind']}-{case.get('dtype')}",
)
def test_the_loop_in_c_equals_the_loop_in_python(case, monkeypatch):
    """torch may choose another kernel of cuBLAS for the same product, so they are equal but for rounding."""
    monkeypatch.setattr(gpu, "processors", lambda _: 0)
    monkeypatch.setattr(plans, "processors", lambda _: 0)
    found, calls, run_in_c = [], [], routine.Routine._run_in_c
    monkeypatch.setattr(routine.Routine, "_run_in_c", lambda self, *a: (calls.append(a), run_in_c(self, *a))[1])
    monkeypatch.setattr(recordings, "available", lambda: False)
    for number, may in enumerate((True, True, False)):
        if not may:
            monkeypatch.setattr(routine.Routine, "_may_run_in_c", lambda self: False)
        torch.manual_seed(1)
        own = Case(**{"steps": 9, "batch": 40, "hidden": 300, "device": "cuda", **case})
        outputs = own.by_kernels()
        found.append([*outputs, *own.gradients(outputs, own.leaves()).values()])
        assert len(calls) == (2, 4, 4)[number]
    first, again, in_python = found
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    bound = max(BOUNDS[own.dtype]) / 4
    assert max(off(*pair) for pair in zip(first, in_python, strict=True)) <= bound


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("noise", ["nah", "nan:alpha=1.0", "nanil", "nani:sigma=0.5,draw=mean"])
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
def test_every_noise_equals_the_reference(kind, noise, dtype, monkeypatch):
    for name in ("forward_plan", "backward_plan"):
        chosen = getattr(gpu, name)
        monkeypatch.setattr(gpu, name, lambda *a, chosen=chosen: chosen(*a[:4], 0))
    for hard, packed, reverse in ((True, False, True), (True, True, False), (True, True, True), (False, False, False)):
        if hard or "draw" not in noise:
            compare(Case(kind, 5, 40, 70, noise=noise, hard=hard, packed=packed, reverse=reverse, dtype=dtype,
                         device="cuda"))  # fmt: skip


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("packed", [False, True])
def test_projections_equal_the_reference(packed, dtype):
    compare(Case("lstm", 9, 40, 200, projection=33, packed=packed, reverse=packed, dtype=dtype, device="cuda"))


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("projection", [0, 33])
def test_rules_equal_the_reference(kind, projection):
    if projection and kind != "lstm":
        return
    compare(Case(kind, 9, 40, 70, projection=projection, dtype=torch.float64, device="cuda", **RULES))


LAYERS = {
    "projection": lambda: na.NoisyLSTM(16, 48, 2, proj_size=12),
    "float64": lambda: na.NoisyGRU(16, 48, 2, dtype=torch.float64),
    "large": lambda: na.NoisyLSTM(16, 1024),
}


def input_for(layer, scale=1.0):
    steps, batch = (7, 512) if layer.hidden_size == 1024 else (33, 20)  # so many steps that stacked layers overlap
    return scale * torch.randn(steps, batch, 16, device="cuda", dtype=layer.weight_hh_l0.dtype)


@pytest.mark.parametrize("name", LAYERS)
def test_modules_equal_the_reference_and_repeat_to_the_bit(name):
    layer = LAYERS[name]().cuda()
    x, results = input_for(layer), []
    for backend in ("triton", "triton", "reference"):
        layer.backend = backend
        torch.manual_seed(3)
        y = layer(x)[0]
        results.append([y, *torch.autograd.grad(y.sum(), list(layer.parameters()))])
    for one, again, right in zip(*results, strict=True):
        assert torch.equal(one, again)
        assert off(one, right) < 1e-3


@pytest.mark.skipif(native.library() is None, reason="the C kernels are not compiled here")
@pytest.mark.parametrize("name", LAYERS)
def test_recorded_steps_have_the_bits_of_the_loop(name, monkeypatch):
    """Also after other weights, with other work between, without TF32 and on another stream."""
    monkeypatch.setattr(recordings, "_FEWEST_CALLS", 8)
    layer = LAYERS[name]().cuda()
    x, others = input_for(layer), [torch.randn(3, 5 + i, 16, device="cuda", dtype=layer.weight_hh_l0.dtype)
                                   for i in range(4)]  # fmt: skip
    recordings.clear()

    def step():
        torch.manual_seed(3)
        layer.zero_grad()
        y = layer(x)[0]
        y.square().sum().backward()
        return [y.detach().cpu(), *(p.grad.cpu() for p in layer.parameters())]  # no memory of the next step

    def steps():
        found = [step() for _ in range(5)]
        torch.cuda.current_stream().synchronize()
        return found

    for change in (None, "weights", "work", "products", "stream"):
        if change == "weights":
            layer.weight_hh_l0.data.mul_(0.5)
        elif change == "work":
            for other in others:
                layer(other)[0].sum().backward()
        elif change == "products":
            torch.backends.cudnn.allow_tf32 = True
        stream = torch.cuda.Stream() if change == "stream" else torch.cuda.current_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found = steps()
            recorded = sum(graph is not None for graph in recordings._recordings.values())
            recordings.clear()
            found += steps()[:1]  # by the loop
        assert recorded >= 2, change  # forward and backward
        assert all(torch.equal(*pair) for again in found[1:] for pair in zip(found[0], again, strict=True)), change


@pytest.mark.parametrize("name", LAYERS)
def test_graphs_draw_new_noise_at_every_replay(name):
    layer = LAYERS[name]().cuda()
    x = input_for(layer, 30.0)  # so that units saturate and draw noise

    def step():
        layer.zero_grad()
        y = layer(x)[0]
        y.sum().backward()
        return y

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    seen = []
    for _ in range(2):
        graph.replay()
        seen.append((y.detach().clone(), layer.weight_hh_l0.grad.clone()))
    for one, other in zip(*seen, strict=True):
        assert one.isfinite().all()
        assert not torch.equal(one, other)
    assert off(seen[0][0], seen[1][0]) < 0.5


@pytest.mark.parametrize("name", LAYERS)
def test_compiled_whole(name):
    layer = LAYERS[name]().cuda()
    x = input_for(layer, 30.0).requires_grad_()
    compiled = torch.compile(layer, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled.eval()(x)[0], layer.eval()(x)[0])
    layer.train()
    y = compiled(x)[0]
    y.sum().backward()
    assert x.grad.isfinite().all()
    assert layer.weight_hh_l0.grad.norm() > 0
    assert not torch.equal(compiled(x)[0], y)

"""The GPU kernels of the recurrent layers and cells: values, gradients, noise, graphs, compilation, no hang."""

import itertools

import pytest
import torch
from recurrent_cases import Case
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import noisyact as na
from noisyact.noise import recurrent_normal
from noisyact.ops.recurrent.gpu import launches, registration
from noisyact.ops.recurrent.gpu import layers as gpu
from noisyact.ops.recurrent.gpu.call import packed_rows
from noisyact.ops.recurrent.gpu.plan import Plan, forward_plan

pytestmark = pytest.mark.gpu
NOISES = ["nah", "nan:alpha=1.0", "nani", "nanil", "nanis", "nah:clip=True", None]
ESTIMATORS = ["straight-through", "slope:slope=1.5", "gumbel", "hard-concrete", "saturating-sigmoid"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = list(itertools.product([1, 2, 35, 63, 200], [1, 3, 20, 64], [1, 17, 64, 200, 650, 1024, 1500]))
# Relative errors by norm, of outputs and of gradients: in 16 bits some values fall on the other side of a kink, where
# the slope jumps, and an error of one step is an input of the next.
# In 16 bits some units fall on the other side of a kink, where the slope jumps: a few of those move a gradient far.
BOUNDS = {torch.float32: (1e-4, 5e-3), torch.bfloat16: (5e-2, 0.4), torch.float16: (1e-2, 0.25)}


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
        assert one.dtype == case.dtype
        assert one.isfinite().all()
        assert off(one, other) <= for_outputs
    right_gradients = case.gradients(right, wide)
    for name, gradient in case.gradients(mine, case.leaves()).items():
        assert gradient.isfinite().all(), name
        if right_gradients[name].norm() > 1e-6:
            assert off(gradient, right_gradients[name]) <= for_gradients, (
                f"{name}: {off(gradient, right_gradients[name])}"
            )


@pytest.mark.parametrize("index", range(len(SIZES)), ids=lambda i: "T{}-B{}-H{}-".format(*SIZES[i]))
def test_every_size_equals_the_reference(index):
    """Every size for both layers, with noise, dtype and the rest in turn."""
    for offset, kind in enumerate(("lstm", "gru")):
        turn = index + 3 * offset + index // 7
        case = Case(
            kind, *SIZES[index], noise=NOISES[turn % 7], dtype=DTYPES[turn % 3], hard=turn % 5 != 0,
            reverse=turn % 4 == 0, state=turn % 2 == 0, inputs=8, device="cuda",
        )  # fmt: skip
        compare(case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "batch", "hidden"),
    [
        ("lstm", 400, 200), ("gru", 512, 256), ("lstm", 900, 129), ("gru", 150, 40), ("lstm", 150, 100),
        ("rnn_tanh", 500, 300), ("rnn_tanh", 30, 1000), ("rnn_relu", 100, 700),
    ],
)  # fmt: skip
def test_many_rows_equal_the_reference(kind, batch, hidden, dtype):
    """Programs of many rows and many units."""
    compare(Case(kind, 3, batch, hidden, inputs=8, dtype=dtype, device="cuda"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("noise", [*NOISES, *ESTIMATORS])
def test_every_noise_equals_the_reference(noise, kind, dtype):
    if kind == "rnn_relu" and noise in ESTIMATORS[2:]:
        return
    for hard, packed, draw in ((True, False, True), (True, True, True), (False, True, True), (True, False, False)):
        compare(Case(kind, 6, 20, 40, noise=noise, hard=hard, packed=packed, reverse=packed, draw=draw, dtype=dtype,
                     device="cuda"))  # fmt: skip


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_rounded_gates(kind):
    for hard, draw in ((True, True), (False, True), (False, False)):
        gates = "straight-through:binary=True"
        compare(Case(kind, 6, 20, 40, gate_noise=gates, hard=hard, draw=draw, device="cuda"))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_launch_a_step_gives_the_same(kind, monkeypatch):
    case = Case(kind, 7, 20, 300, device="cuda")
    right = case.by_kernels()
    gradients = case.gradients(right, case.leaves())
    for name in ("forward_plan", "backward_plan"):
        chosen = getattr(gpu, name)
        monkeypatch.setattr(gpu, name, lambda *a, chosen=chosen: chosen(*a[:4], 0))
    mine = case.by_kernels()
    for one, other in zip(mine, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    for name, gradient in case.gradients(mine, case.leaves()).items():
        assert off(gradient, gradients[name]) <= 1e-4, name


def test_tf32_is_taken_where_cudnn_takes_it():
    case = Case("lstm", 3, 20, 200, noise="nan:alpha=1.0", device="cuda")
    exact = case.by_kernels()[0]
    torch.backends.cudnn.allow_tf32 = True
    rounded = case.by_kernels()[0]
    assert 1e-5 < off(rounded, exact) < 1e-2
    assert not torch.backends.cuda.matmul.allow_tf32


def noise_of(steps, batch, hidden, seed, plan=None):
    """xi itself: with weights of 0, a hard tanh of 0.1 xi."""
    noise = na.NANI(sigma=0.1)
    case = Case("rnn_tanh", steps, batch, hidden, noise=str(noise), state=False, bias=False, device="cuda")
    case.seed = seed
    with torch.no_grad():
        case.w_ih.zero_()
        case.w_hh.zero_()
        return (case.by_kernels()[0] * 10).reshape(steps, batch, hidden)


def test_noise_is_that_of_the_seed_for_every_plan(monkeypatch):
    seed = torch.tensor(2**61 + 3, device="cuda")
    steps, batch, hidden = 4, 40, 70
    rows = torch.arange(batch, device="cuda").repeat(steps)
    step = torch.arange(steps, device="cuda").repeat_interleave(batch)
    right = recurrent_normal(seed, step, rows, 1, hidden)[:, 0].reshape(steps, batch, hidden)
    for rows_, units, warps in ((16, 8, 4), (32, 8, 8), (16, 16, 4), (64, 16, 8), (32, 32, 8)):
        plan = Plan(True, rows_, units, 128, True, 3, warps)
        monkeypatch.setattr(gpu, "forward_plan", lambda *_, plan=plan: plan)
        torch.testing.assert_close(noise_of(steps, batch, hidden, seed), right, rtol=0, atol=2e-5)


def test_the_noise_is_normal_and_independent():
    seeds = [torch.tensor(s, device="cuda") for s in (11, 12)]
    one, other = (noise_of(200, 64, 64, seed).double() for seed in seeds)
    flat = one.flatten()
    n = flat.numel()
    assert abs(flat.mean()) < 5 / n**0.5
    assert abs(flat.var() - 1) < 5 * (2 / n) ** 0.5
    assert abs((flat**3).mean()) < 5 * (15 / n) ** 0.5
    assert abs((flat**4).mean() - 3) < 5 * (96 / n) ** 0.5
    ordered = flat.sort().values
    cdf = torch.special.ndtr(ordered)
    grid = torch.arange(1, n + 1, device="cuda", dtype=torch.float64) / n
    assert (cdf - grid).abs().max() < 1.95 / n**0.5
    for bound in (3.0, 4.0):
        expected = n * 2 * torch.special.ndtr(torch.tensor(-bound, dtype=torch.float64)).item()
        assert abs((flat.abs() > bound).sum().item() - expected) < 5 * expected**0.5 + 1
    for pair in ((one[1:], one[:-1]), (one[:, 1:], one[:, :-1]), (one[..., 1:], one[..., :-1]), (one, other)):
        assert abs((pair[0] * pair[1]).mean()) < 5 / pair[0].numel() ** 0.5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [na.NoisyLSTM, na.NoisyGRU])
@pytest.mark.parametrize("hidden", [200, 650])
def test_repeats_are_equal_to_the_bit(make, hidden, dtype):
    layer = make(100, hidden, 2, device="cuda", dtype=dtype)
    x = (20 * torch.randn(10, 20, 100, device="cuda", dtype=dtype)).requires_grad_()  # saturated, and so noisy
    results = []
    for _ in range(3):
        torch.manual_seed(5)
        y = layer(x)[0]
        results.append([y, *torch.autograd.grad(y.sum(), [x, *layer.parameters()])])
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], again, strict=True))
    assert not torch.equal(layer(x)[0], results[0][0])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_modules_in_all_their_shapes(kind):
    make = getattr(na, f"Noisy{kind}")
    lengths = [5, 9, 1, 7]
    settings = {"num_layers": 2, "bidirectional": True, "dropout": 0.3}
    inputs = {
        "batched": torch.randn(6, 4, 10), "unbatched": torch.randn(6, 10), "batch first": torch.randn(4, 6, 10),
        "packed": pack_sequence([torch.randn(n, 10) for n in lengths], enforce_sorted=False),
    }  # fmt: skip
    for name, x in inputs.items():
        layer = make(10, 33, batch_first=name == "batch first", **settings).cuda()
        results = []
        for backend in ("auto", "reference"):
            layer.backend = backend
            torch.manual_seed(3)
            output, state = layer(x.to("cuda"))
            output = output.data if name == "packed" else output
            results.append([output, *(state if isinstance(state, tuple) else (state,))])
            results[-1] += torch.autograd.grad(output.sum(), list(layer.parameters()))
        for a, b in zip(*results, strict=True):
            assert off(a, b) < 1e-3, name


def test_projections_and_float64_say_how_they_run():
    layer = na.NoisyLSTM(10, 33, proj_size=5).cuda()
    assert layer(torch.randn(6, 4, 10, device="cuda"))[0].shape == (6, 4, 5)
    assert "projection" in na.backend_info(layer)
    assert "float32" in na.backend_info(na.NoisyGRU(4, 4, dtype=torch.float64).cuda())
    assert "one launch" in na.backend_info(na.NoisyLSTM(4, 4).cuda())


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_cells_equal_the_reference(name):
    cell = getattr(na, f"Noisy{name}Cell")(12, 70).cuda()
    x, first = torch.randn(5, 21, 12, device="cuda"), torch.randn(21, 70, device="cuda", requires_grad=True)
    results = []
    for backend in ("triton", "reference"):
        cell.backend = backend
        torch.manual_seed(9)
        state = (first, first * 2) if name == "LSTM" else first
        for step in x:
            state = cell(step, state)
        outputs = list(state) if name == "LSTM" else [state]
        results.append([*outputs, *torch.autograd.grad(sum(o.sum() for o in outputs), [first, *cell.parameters()])])
    for a, b in zip(*results, strict=True):
        assert off(a, b) < 1e-4


def test_graphs_draw_new_noise_at_every_replay():
    layer = na.NoisyLSTM(64, 200, 2).cuda()
    x = torch.randn(20, 20, 64, device="cuda")

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
    for _ in range(3):
        graph.replay()
        seen.append((y.detach().clone(), layer.weight_hh_l0.grad.clone()))
    for a, b in itertools.combinations(seen, 2):
        assert not torch.equal(a[0], b[0])
        assert not torch.equal(a[1], b[1])
        assert off(a[0], b[0]) < 0.5


@pytest.mark.parametrize("make", [na.NoisyLSTM, na.NoisyGRU])
def test_compiled_whole(make):
    layer = make(16, 48, 2).cuda()
    x = torch.randn(7, 5, 16, device="cuda", requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled.eval()(x)[0], layer.eval()(x)[0])
    layer.train()
    y = compiled(x)[0]
    y.sum().backward()
    assert x.grad.isfinite().all()
    assert layer.weight_hh_l0.grad.norm() > 0
    assert not torch.equal(compiled(x)[0], y)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
def test_the_operators_keep_torchs_rules(kind):
    text = str(na.NAH())
    for packed in (False, True):
        case = Case(kind, 3, 4, 20, packed=packed, device="cuda")
        offsets, before = (None, None) if not packed else packed_rows(tuple(case.sizes), False, case.x.device)
        scales, sizes = (case.cell_noise.state_scale, case.cell_noise.gate_scale), case.sizes if packed else None
        tensors = (case.x, offsets, before, case.h0, case.c0, case.w_ih, case.w_hh, case.b_ih, case.b_hh, case.p,
                   case.w_hr, case.seed, *scales)  # fmt: skip
        torch.library.opcheck(registration._layer, (*tensors, kind, text, text, True, 3, 4, False, sizes, True))


def test_autocast_computes_in_its_dtype():
    x = torch.randn(5, 3, 16, device="cuda")
    noisy, plain = na.NoisyLSTM(16, 32, hard=False, noise="nani:sigma=0.0").cuda(), nn.LSTM(16, 32).cuda()
    plain.load_state_dict({k: v for k, v in noisy.state_dict().items() if not k.startswith("noise")})
    with torch.autocast("cuda", dtype=torch.bfloat16):
        ours, theirs = noisy(x)[0], plain(x)[0]
        ours.float().sum().backward()
    assert ours.dtype == torch.bfloat16  # cuDNN takes float16 whatever autocast says
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=3e-2, atol=3e-2)
    assert noisy.weight_ih_l0.grad.dtype == torch.float32


def test_ten_thousand_steps_do_not_hang():
    layer = na.NoisyLSTM(64, 200).cuda()
    x = torch.randn(3, 20, 64, device="cuda")
    for _ in range(10_000):
        layer(x)[0].sum().backward()
    torch.cuda.synchronize()
    assert layer.weight_hh_l0.grad.isfinite().all()


def test_a_program_that_never_comes_is_reported(monkeypatch):
    case = Case("lstm", 4, 20, 200, device="cuda")

    def one_too_few(*settings):
        launch = launcher(*settings)
        return lambda grid, *rest: launch((grid[0] - 1,), *rest)

    launcher = launches._launcher
    monkeypatch.setattr(launches, "_launcher", one_too_few)
    y = case.by_kernels()[0]
    torch.cuda.synchronize()
    monkeypatch.undo()
    assert y.isnan().any()
    with pytest.raises(RuntimeError, match="gave up waiting"):
        case.by_kernels()
    assert case.by_kernels()[0].isfinite().all()


def test_a_gpu_without_room_takes_a_launch_a_step():
    assert forward_plan("lstm", 20, 1500, 4, 132).persistent
    assert not forward_plan("lstm", 20, 1500, 4, 16).persistent
    assert not forward_plan("lstm", 20, 200, 4, 0).persistent


@pytest.mark.parametrize("make", [na.NoisyLSTM, na.NoisyGRU])
def test_a_hundred_steps_of_training_agree(make):
    torch.manual_seed(2)
    x, target = torch.randn(12, 16, 8, device="cuda"), torch.randn(12, 16, 24, device="cuda").clamp(-0.9, 0.9)
    layer = make(8, 24).cuda()
    start = {name: value.clone() for name, value in layer.state_dict().items()}
    curves = []
    for backend in ("triton", "reference"):
        layer.load_state_dict(start)
        layer.backend = backend
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
        torch.manual_seed(7)
        losses = []
        for _ in range(100):
            optimizer.zero_grad()
            loss = (layer(x)[0] - target).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(torch.tensor(losses))
    torch.testing.assert_close(*curves, rtol=1e-3, atol=1e-4)
    assert curves[0][-10:].mean() < curves[0][:10].mean()

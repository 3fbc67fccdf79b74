"""Associative recall: its sequences, the machine's addressing worked out by hand, learning, resuming, a CUDA graph."""

import json
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import noisyact as na
from noisyact.experiments import ntm, registry
from noisyact.experiments.recall import RECALL, Recall, sequences
from noisyact.experiments.run import folder_of, run

ARMS = [arm.name for arm in RECALL.arms]
CPU = torch.device("cpu")
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
TINY = {"max_items": 3, "hidden": 6, "rows": 4, "width": 3, "batch": 4, "validation": 5, "bits": 2, "item_length": 1}


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


# The task


@pytest.mark.parametrize(("items", "length", "bits"), [(2, 3, 6), (5, 2, 4), (16, 3, 6)])
def test_the_answer_is_the_item_after_the_query(items, length, bits):
    x, answers = sequences(200, items, length, bits, torch.Generator().manual_seed(items))
    assert x.shape == ((items + 2) * (length + 1), 200, bits + 2)
    asked = set()
    for sequence, answer in zip(x.unbind(1), answers.unbind(1), strict=True):
        *listed, query, silence = sequence.reshape(items + 2, length + 1, bits + 2)
        for part in listed:
            assert part[0].tolist() == [0.0] * bits + [1.0, 0.0]
        for part in (query, silence):
            assert part[0].tolist() == [0.0] * bits + [0.0, 1.0]
        assert not sequence.reshape(items + 2, length + 1, -1)[:, 1:, bits:].any()
        assert not silence[1:].any()
        listed = [part[1:, :bits].tolist() for part in listed]
        followers = {i: listed[i + 1] for i in range(items - 1) if listed[i] == query[1:, :bits].tolist()}
        assert answer.tolist() in followers.values()
        asked |= set(followers)
    assert asked == set(range(items - 1))


def test_bits_are_even():
    x, _ = sequences(2000, 4, 3, 6, torch.Generator().manual_seed(0))
    share = x.reshape(6, 4, 2000, 8)[:4, 1:, :, :6].mean().item()
    assert abs(share - 0.5) < 4 * 0.5 / math.sqrt(4 * 3 * 2000 * 6)


# Addressing, by hand


def test_content_by_hand():
    """Cosines 1, 0, -1, 0.6; strength ln 2: weights 2, 1, 1/2 and 2^0.6, a row of zeros 1."""
    memory = tensor([[2.0, 0.0], [0.0, 5.0], [-1.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
    weights = tensor(2.0, 1.0, 0.5, 2**0.6, 1.0)
    found = ntm.content(tensor([[10.0, 0.0]]), tensor([[math.log(2)]]), memory)
    torch.testing.assert_close(found[0, 0], weights / weights.sum(), rtol=1e-6, atol=1e-6)


def test_every_head_has_a_key_of_its_own():
    memory = tensor([[1.0, 0.0], [0.0, 1.0]])
    found = ntm.content(tensor([[1.0, 0.0], [0.0, 1.0]]), tensor([[9.0], [0.0]]), memory)
    torch.testing.assert_close(found[0, 0, 0].item(), 1 / (1 + math.exp(-9)), rtol=1e-5, atol=0)
    assert found[0, 1].tolist() == [0.5, 0.5]


def test_interpolation_shift_and_sharpening_by_hand():
    before, found = tensor([[1.0, 0.0, 0.0, 0.0]]), tensor([[0.0, 0.0, 0.4, 0.6]])
    mixed = ntm.interpolate(tensor([[0.5]]), found, before)
    torch.testing.assert_close(mixed, tensor([[0.5, 0.0, 0.2, 0.3]]))
    # Half goes back a row and row 0 to the end, a quarter stays, a quarter goes on and row 3 to the start:
    # row 0 has 1/2 * 0 + 1/4 * 0.5 + 1/4 * 0.3, row 3 has 1/2 * 0.5 + 1/4 * 0.3 + 1/4 * 0.2.
    shifted = ntm.shift(mixed, tensor([[0.5, 0.25, 0.25]]))
    torch.testing.assert_close(shifted, tensor([[0.2, 0.225, 0.2, 0.375]]))
    sharp = ntm.sharpen(tensor([[0.5, 0.25, 0.25, 0.0]]), tensor([[2.0]]))
    torch.testing.assert_close(sharp, tensor([[4 / 6, 1 / 6, 1 / 6, 0.0]]))
    torch.testing.assert_close(ntm.sharpen(shifted, tensor([[1.0]])), shifted)


def test_all_heads_erase_before_any_adds():
    """In column 0 of row 0, 8 (1 - 1/2) for the first head and (1 - 1/4) for the second, then 1 is added."""
    memory = torch.full((1, 2, 2), 8.0, dtype=torch.float64)
    weighting = tensor([[0.5, 0.0], [0.5, 1.0]])
    erase, add = tensor([[1.0, 0.0], [0.5, 0.0]]), tensor([[2.0, 0.0], [0.0, 6.0]])
    after = ntm.write(memory, weighting, erase, add)
    torch.testing.assert_close(after, tensor([[8 * 0.5 * 0.75 + 1.0, 8 + 3.0], [8 * 0.5, 8 + 6.0]]))


def by_the_book(machine, x, answer):
    """The machine for one sequence, in loops, as Graves et al. write it."""
    rows, width, heads = machine.rows, machine.width, machine.heads
    memory = torch.full((rows, width), ntm.FIRST_MEMORY, dtype=torch.float64)
    weightings = [[float(i == 0) for i in range(rows)] for _ in range(2 * heads)]
    reads = torch.zeros(heads * width, dtype=torch.float64)
    outputs = []
    for now in x:
        h = torch.tanh(machine.controller.linear(torch.cat([now, reads])))
        told = machine.to_heads(h)
        vectors, scalars = told[: 4 * heads * width].reshape(4 * heads, width), told[4 * heads * width :]
        scalars = scalars.reshape(2 * heads, 6)
        for k in range(2 * heads):
            key = torch.tanh(vectors[2 * heads + k])
            strength, power = (math.log1p(math.exp(scalars[k, j])) for j in (0, 1))
            gate = 1 / (1 + math.exp(-scalars[k, 2]))
            moves = [math.exp(s) for s in scalars[k, 3:]]
            cosines = [float(key @ row / (key.norm() ** 2 + 1e-6) ** 0.5 / (row.norm() ** 2 + 1e-6) ** 0.5)
                       for row in memory]  # fmt: skip
            content = [math.exp(strength * cosine) for cosine in cosines]
            mixed = [gate * content[i] / sum(content) + (1 - gate) * weightings[k][i] for i in range(rows)]
            moved = [0.0] * rows
            for i in range(rows):
                for by, share in zip((-1, 0, 1), moves, strict=True):
                    moved[(i + by) % rows] += mixed[i] * share / sum(moves)
            sharp = [w ** (1 + power) for w in moved]
            weightings[k] = [w / sum(sharp) for w in sharp]
        reads = torch.cat([sum(weightings[k][i] * memory[i] for i in range(rows)) for k in range(heads)])
        erased = memory.clone()
        for i in range(rows):
            for k in range(heads):
                erased[i] *= 1 - weightings[heads + k][i] * torch.sigmoid(vectors[k])
            for k in range(heads):
                erased[i] += weightings[heads + k][i] * torch.tanh(vectors[heads + k])
        memory = erased
        outputs.append(machine.output(torch.cat([h, reads])))
    return torch.stack(outputs[-answer:])


def test_the_machine_is_that_of_the_book():
    machine = ntm.NTM(4, 3, hidden=7, heads=2, rows=5, width=4, hard=False).double()
    with torch.no_grad():
        for weights in machine.parameters():
            weights.normal_(std=0.8)
    x = torch.randn(9, 3, 4, dtype=torch.float64)
    with torch.no_grad():
        found = machine(x, answer=2)
        for one, right in zip(x.unbind(1), found.unbind(1), strict=True):
            torch.testing.assert_close(by_the_book(machine, one, 2), right, rtol=1e-6, atol=1e-6)


def answers_and_gradients(machine, x):
    torch.manual_seed(5)
    logits = machine(x, answer=2)
    return [
        logits,
        *torch.autograd.grad((logits * torch.linspace(-1, 1, 3, device=x.device)).sum(), list(machine.parameters())),
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sizes", [(2, 5, 4), (4, 128, 20), (1, 8, 8), (3, 33, 7)], ids=str)
def test_the_fused_machine_is_the_same(sizes):
    """Heads, rows and width; tests of the kernels without a GPU are in interpreted_ntm.py."""
    heads, rows, width = sizes
    sizes = {"hidden": 7, "heads": heads, "rows": rows, "width": width}
    machines = [ntm.NTM(4, 3, noise=na.NAN(c=3.0), **sizes), ntm.NTM(4, 3, controller="lstm", noise=na.NAN(), **sizes)]
    for machine in machines:
        for weights in machine.cuda().parameters():
            torch.nn.init.normal_(weights, std=0.5)
        x = torch.randn(6, 5, 4, device="cuda")
        fused = answers_and_gradients(machine, x)
        assert all(map(torch.equal, fused, answers_and_gradients(machine, x)))
        machine.fused = False
        for ours, right in zip(fused, answers_and_gradients(machine, x), strict=True):
            torch.testing.assert_close(ours, right, rtol=1e-3, atol=1e-3 * max(1.0, right.abs().max().item()))


# Numbers that stay finite


def finite_gradients(function, *inputs):
    leaves = [value.float().requires_grad_() for value in inputs]
    result = function(*leaves)
    assert result.isfinite().all()
    for gradient in torch.autograd.grad((result * torch.rand_like(result)).sum(), leaves):
        assert gradient.isfinite().all()


def test_stages_are_finite_at_the_ends():
    zeros, one_hot = torch.zeros(1, 1, 4), torch.eye(4)[None, :1]
    memory = torch.stack([torch.zeros(4), torch.ones(4), torch.full((4,), 1e15), torch.full((4,), 1e-30)])[None]
    for key in (zeros, torch.ones(1, 1, 4), torch.full((1, 1, 4), -1e15)):
        for strength in (0.0, ntm.LIMIT):
            finite_gradients(ntm.content, key, torch.full((1, 1, 1), strength), memory)
    for power in (1.0, 1 + ntm.LIMIT):
        for weighting in (one_hot, torch.full((1, 1, 4), 0.25), zeros):
            finite_gradients(ntm.sharpen, weighting, torch.full((1, 1, 1), power))


@pytest.mark.parametrize("controller", ["feedforward", "lstm"])
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("size", [0.0, 30.0, 1e15])
def test_gradients_are_finite_for_extreme_weights(controller, arm, size):
    """Weights so large that all that is told to the heads is at its limits, or nothing at all.

    With gates that are clipped: an LSTM whose forget gate leaks far out of [0, 1] grows without bound, as it must.
    """
    changes = {**TINY, "controller": controller, "rows": 8, "gate_clip": True}
    task = Recall(RECALL.effective(arm, "smoke", changes), 0, CPU)
    if arm == "nan-annealed":
        na.set_noise_scale(task.model, 30.0)
    with torch.no_grad():
        for name, weights in task.model.named_parameters():
            weights.mul_(1.0 if name.endswith(("p", "output.weight")) else size)
    loss = task.model(task.valid_x, answer=1).square().mean()
    loss.backward()
    assert loss.isfinite()
    for name, weights in task.model.named_parameters():
        assert weights.grad is None or weights.grad.isfinite().all(), name


# The experiment


def test_is_registered_with_every_arm():
    assert registry.load("recall") is RECALL
    assert ARMS == ["reference", "hard", "leak", "nan", "nan-annealed"]
    leak, nan, annealed = (RECALL.effective(arm, "paper") for arm in ARMS[2:])
    assert (leak.c, leak.alpha, leak.scheme) == (0.0, annealed.alpha, annealed.scheme)
    assert (nan.annealed, annealed.annealed, nan.alpha) == (False, True, annealed.alpha)
    assert (annealed.min_items, annealed.max_items) == (2, 16)


@pytest.mark.parametrize("controller", ["feedforward", "lstm"])
def test_weights_of_a_seed_are_the_same_in_every_arm(controller):
    made = []
    for arm in ARMS:
        torch.manual_seed(7)
        task = Recall(RECALL.effective(arm, "smoke", {**TINY, "controller": controller}), 0, CPU)
        made.append({name: w for name, w in task.model.named_parameters() if not name.endswith("p")})
    for weights in made[1:]:
        assert weights.keys() == made[0].keys()
        assert all(torch.equal(weights[name], made[0][name]) for name in weights)


def test_all_validation_sequences_in_one_batch_are_answered_as_alone():
    task = Recall(RECALL.effective("nan", "smoke", {**TINY, "item_length": 2, "max_items": 5}), 0, CPU)
    found, generator = task._answers(), torch.Generator().manual_seed(20_160_301)
    assert found.shape == task.valid_answer.shape == (2, 4, 5, 2)
    for place, items in enumerate((2, 3, 4, 5)):
        x, answer = sequences(5, items, 2, 2, generator)
        assert torch.equal(task.valid_answer[:, place], answer)
        task.model.eval()
        with torch.no_grad():
            torch.testing.assert_close(found[:, place], task.model(x, answer=2))


def test_noise_is_annealed_as_the_paper_says():
    """c = 30 / sqrt(t + 1), t counting every 200 updates, and 0.5 at the least."""
    task = Recall(RECALL.effective("nan-annealed", "smoke", {**TINY, "evaluate_every": 1}), 0, CPU)
    for index, c in ((0, 30.0), (199, 30.0), (200, 30 / math.sqrt(2)), (600, 15.0), (10**6, 0.5)):
        assert task.update(index)["c"] == c
        assert task.model.controller.activation.scale.item() == pytest.approx(c)


@pytest.mark.parametrize("arm", ["reference", "nan-annealed"])
def test_learns_to_recall(arm, tmp_path):
    changes = {**TINY, "bits": 4, "hidden": 32, "rows": 6, "width": 8, "batch": 16, "max_items": 2, "updates": 250,
               "evaluate_every": 250, "validation": 200, "learning_rate": 0.01}  # fmt: skip
    record = run(RECALL, arm, "smoke", 0, tmp_path, device="cpu", changes=changes)
    assert record["result"]["valid_error"] < 2  # of 50 by chance
    assert record["result"]["valid_wrong_answers"] < 10  # of 94
    samples = json.loads((folder_of(tmp_path, "recall", "smoke", arm, 0) / "samples.json").read_text())
    rows = samples[0]["rows"]
    assert sum(right == predicted for right, predicted in rows) >= 4


@pytest.mark.parametrize("arm", ["reference", "nan-annealed"])
def test_stopped_and_resumed_ends_the_same(arm, tmp_path):
    def stop(done, updates, line):
        if done in (5, 10):
            raise KeyboardInterrupt

    where = {"device": "cpu", "changes": {**TINY, "updates": 14, "evaluate_every": 5, "controller": "lstm"}}
    whole = run(RECALL, arm, "smoke", 1, tmp_path / "whole", **where)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(RECALL, arm, "smoke", 1, tmp_path / "parts", progress=stop, **where)
    parts = run(RECALL, arm, "smoke", 1, tmp_path / "parts", **where)
    assert parts["result"] == whole["result"]
    folders = [folder_of(tmp_path / d, "recall", "smoke", arm, 1) for d in ("whole", "parts")]
    for name in ("metrics.jsonl", "checkpoints/000000014/tensors.safetensors"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_bad_settings_are_named():
    for changes, message in (
        ({"scheme": "nani"}, "scheme='nani': allowed are 'nan', 'nah', 'nanil', 'none'"),
        ({"controller": "gru"}, "controller='gru': allowed are 'feedforward', 'lstm'"),
        ({"min_items": 1}, "min_items=1, max_items=3: the first must be at least 2"),
        ({"max_items": 1}, "min_items=2, max_items=1"),
        ({"rows": 2}, "rows=2: must be at least 3"),
        ({"heads": 0}, "heads=0: must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            Recall(RECALL.effective("nan", "smoke", {**TINY, **changes}), 0, CPU)


# A step as a CUDA graph


class NothingReadBack(TorchDispatchMode):
    """Raises for an operation whose result the host waits for, or whose shape depends on numbers."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket._qualified_op_name
        assert name not in {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"}, name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("controller", ["feedforward", "lstm"])
@pytest.mark.parametrize("arm", ARMS)
def test_a_step_reads_nothing_back(arm, controller):
    task = Recall(RECALL.effective(arm, "smoke", {**TINY, "controller": controller}), 0, CPU)
    batch = task._sequences(4, 3, torch.Generator())
    with NothingReadBack():
        task._step(*batch)
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NothingReadBack():
        task._step(*batch).item()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("controller", ["feedforward", "lstm"])
@pytest.mark.parametrize("arm", ["reference", "nan-annealed"])
def test_graphs_do_what_the_steps_do(arm, controller):
    found = []
    for as_graphs in (True, False):
        torch.manual_seed(3)
        changes = {**TINY, "controller": controller, "updates": 30, "evaluate_every": 10}
        task = Recall(RECALL.effective(arm, "smoke", changes), 0, torch.device("cuda"))
        if not as_graphs:
            task._captured = task._step
        losses = [task.update(index).get("loss") for index in range(30)]
        found.append((torch.tensor(losses[9::10]), [w.detach().cpu() for w in task.model.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)

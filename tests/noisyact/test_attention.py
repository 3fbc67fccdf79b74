"""Additive attention: the formula, and GPU kernels that do not store its large intermediate tensor."""

import pytest
import torch
from attention_cases import equal, looked, parts
from cases import ALL, all_ids
from torch import nn

import noisyact as na
from noisyact.attention import additive_scores, drawn_noise
from noisyact.deferral import deferred_gradients
from noisyact.ops.attention import triton

FUNCTIONS = {
    "tanh": nn.Tanh,
    "hard": lambda: na.NoisyHardTanh(na.NANI(0.0)),
    **{name: (lambda scheme=scheme: na.NoisyHardTanh(scheme)) for name, scheme in zip(all_ids, ALL, strict=True)},
    "sigmoid": lambda: na.NoisyHardSigmoid("nah"),
}
SHAPES = {
    "one query": (3, 1, 30, 2048),
    "a beam": (2, 5, 7, 192),
    "places": (2, 1, 196, 512),
    "not in groups": (2, 1, 5, 40),
}
gpu = pytest.mark.gpu


def test_the_scores_are_the_formula():
    function, (keys, queries, weight, bias) = parts((2, 3, 5, 8), nn.Tanh, "cpu")
    e = additive_scores(keys, queries[0], function, weight, bias)
    for b, w, s in [(0, 0, 0), (1, 2, 4), (0, 1, 3)]:
        by_hand = sum(weight[0, a] * torch.tanh(keys[b, s, a] + queries[0, b, w, a]) for a in range(8)) + bias[0]
        torch.testing.assert_close(e[b, w, s], by_hand)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
@pytest.mark.parametrize("make", FUNCTIONS.values(), ids=FUNCTIONS.keys())
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_deferred_scores_and_gradients_are_autograds(make, training, device):
    function, leaves = parts((3, 1, 30, 128), make, device)
    function.train(training)
    node, ours = looked(function, leaves, True)
    _, theirs = looked(function, leaves, False)
    assert ("_ScoresBackward" in _names(node)) == (device == "cuda")
    equal(ours, theirs)


@gpu
@pytest.mark.parametrize("make", [FUNCTIONS["tanh"], lambda: na.NoisyHardTanh("nah")], ids=["tanh", "nah"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_shape_on_a_gpu(shape, make):
    function, leaves = parts(shape, make, "cuda")
    (node, ours), (_, theirs) = looked(function, leaves, True), looked(function, leaves, False)
    assert ("_ScoresBackward" in _names(node)) == (shape[3] % 64 == 0)
    equal(ours, theirs)


@gpu
@pytest.mark.parametrize("make", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_without_gradients_the_kernel_gives_the_same(make):
    function, leaves = parts((2, 5, 30, 512), make, "cuda")
    keys, queries, weight, bias = [leaf.detach() for leaf in leaves]
    found = []
    for enabled in (False, True):
        torch.manual_seed(7)
        with torch.set_grad_enabled(enabled):
            found.append(additive_scores(keys, queries[0], function, weight, bias).detach())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@gpu
def test_a_pass_that_does_not_ask_for_the_keys_leaves_nothing_behind():
    function, (keys, queries, weight, bias) = parts((2, 1, 9, 64), lambda: na.NoisyHardTanh("nah"), "cuda")
    with deferred_gradients():
        e = sum(additive_scores(keys, query, function, weight, bias).square().sum() for query in queries.unbind())
    first = torch.autograd.grad(e, keys, retain_graph=True)[0]
    torch.autograd.grad(e, queries, retain_graph=True)
    assert torch.equal(torch.autograd.grad(e, keys)[0], first)


@gpu
def test_the_noise_of_a_recorded_step_is_new_at_each_replay():
    function, (keys, queries, weight, _) = parts((2, 1, 9, 64), lambda: na.NoisyHardTanh("nah:c=5.0"), "cuda")
    with torch.no_grad():
        additive_scores(keys, queries[0], function, weight)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            e = additive_scores(keys, queries[0], function, weight)
    found = []
    for _ in range(2):
        graph.replay()
        found.append(e.clone())
    assert not torch.equal(*found)


def test_a_kernel_is_given_only_what_it_can_take(monkeypatch):
    """The kernel neither broadcasts nor checks shapes. torch operations broadcast or raise for other arguments."""
    monkeypatch.setattr(triton, "serves", lambda keys: True)
    function, (keys, queries, weight, _) = parts((2, 3, 5, 64), lambda: na.NoisyHardTanh("nah"), "cpu")
    assert drawn_noise(keys, queries[0], function, weight) is not None
    wrong = {
        "another batch": (keys, queries[0][:1], function, weight),
        "another size": (keys, queries[0][..., :32], function, weight),
        "no width": (keys, queries[0][:, 0], function, weight),
        "no query": (keys, queries[0][:, :0], function, weight),
        "another weight": (keys, queries[0], function, weight.expand(2, 64)),
        "another dtype": (keys, queries[0].double(), function, weight),
        "a p for each unit": (keys, queries[0], na.NoisyHardTanh("nah", 64), weight),
        "p of another dtype": (keys, queries[0], na.NoisyHardTanh("nah").double(), weight),
        "a function of the user's": (keys, queries[0], nn.Sequential(nn.Tanh()), weight),
        "the hard function in evaluation": (
            keys,
            queries[0],
            na.NoisyHardTanh("nah", eval_noise="hard").eval(),
            weight,
        ),
    }
    for what, arguments in wrong.items():
        state = torch.get_rng_state()
        assert drawn_noise(*arguments) is None, what
        assert torch.equal(torch.get_rng_state(), state), what


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
def test_a_query_for_all_of_a_batch_is_broadcast(device):
    function, (keys, queries, weight, bias) = parts((3, 1, 5, 64), nn.Tanh, device)
    with torch.no_grad():
        one = additive_scores(keys, queries[0][:1], function, weight, bias)
        all_of_them = additive_scores(keys, queries[0][:1].expand(3, -1, -1), function, weight, bias)
    torch.testing.assert_close(one, all_of_them, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
def test_hooks_of_the_function_are_called(device):
    function, (keys, queries, weight, _) = parts((2, 1, 9, 64), nn.Tanh, device)
    seen = []
    function.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    with torch.no_grad():
        additive_scores(keys, queries[0], function, weight)
    assert seen == [(2, 1, 9, 64)]


def _names(node):
    """The names of the functions that a result came from, as far as its last step."""
    found = [node.name()]
    for before, _ in node.next_functions:
        if before is not None:
            found.append(before.name())
    return found

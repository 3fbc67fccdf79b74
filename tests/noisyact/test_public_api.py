"""What users may rely on: the names, their docstrings, and an import that costs little."""

import subprocess
import sys

import pytest
import torch

import noisyact as na

NAMES = {
    "HARD_SIGMOID", "HARD_TANH", "NAH", "NAN", "NANI", "NANIL", "NANIS", "RELU", "FiniteWatch", "HardPair",
    "NoiseScheduler", "NoisyActivation", "NoisyHardSigmoid", "NoisyHardTanh", "NoisyModule", "NoisyReLU", "Pair",
    "Scheme", "anneal", "denoisify", "functional", "harden", "inventory", "noise_parameters", "noisify", "saturation",
    "scheme", "set_noise_scale", "NoisyLSTM", "NoisyGRU", "NoisyRNN", "NoisyLSTMCell", "NoisyGRUCell",
    "NoisyRNNCell", "backend_info", "accelerate", "additive_scores", "deferred_gradients", "precompile",
    "seeds_in_blocks", "GumbelGate", "HardConcrete", "SaturatingSigmoid", "SlopeAnnealing", "StraightThrough",
    "set_eval_noise",
}  # fmt: skip


def test_names_are_pinned():
    """A new name is a promise, and a removed name breaks user code."""
    assert set(na.__all__) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES - {"HARD_SIGMOID", "HARD_TANH", "RELU"}))
def test_every_name_is_explained(name):
    assert getattr(na, name).__doc__


def test_modules_and_functions_share_a_name_without_clashing():
    """noisyact.inventory is the function, also after its module was imported."""
    import noisyact.conversion.inventory  # noqa: F401

    assert callable(na.inventory)
    assert callable(na.saturation)


def test_import_is_light():
    """The import loads torch and nothing else of size.

    torch's compiler loads Triton if it is installed. Our kernels load it for the first tensor on a GPU.
    """
    code = (
        "import torch, sys; before = len(sys.modules); import noisyact; added = len(sys.modules) - before;"
        "heavy = {'jax', 'matplotlib', 'rich', 'lightning', 'transformers', 'onnx'} & set(sys.modules);"
        "heavy |= {m for m in sys.modules if m.startswith('noisyact.ops.triton.') or 'triton_kernels' in m};"
        "assert not heavy, heavy; print(added)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(out) < 150, "modules beside torch's and noisyact's own were imported"


def test_drop_in_for_five_lines():
    """The README's promise: an existing model trains with noise after one call."""
    model = na.noisify(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()), "nah")
    model(torch.randn(2, 3)).sum().backward()
    assert model[1].p.grad is not None

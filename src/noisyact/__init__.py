"""Noisy activation functions for PyTorch: hard-saturating units whose noise grows with their saturation.

After Gulcehre, Moczulski, Denil and Bengio, "Noisy Activation Functions" (2016).
"""

from noisyact import anneal, functional
from noisyact.activations import (
    NoisyActivation,
    NoisyHardSigmoid,
    NoisyHardTanh,
    NoisyModule,
    NoisyReLU,
    noise_parameters,
    set_noise_scale,
)
from noisyact.anneal import NoiseScheduler
from noisyact.attention import additive_scores
from noisyact.conversion.accelerate import accelerate
from noisyact.conversion.convert import denoisify, noisify
from noisyact.conversion.evaluation import set_eval_noise
from noisyact.conversion.inventory import inventory
from noisyact.deferral import deferred_gradients
from noisyact.diagnostics.finite import FiniteWatch
from noisyact.diagnostics.saturation import saturation
from noisyact.estimators import GumbelGate, HardConcrete, SaturatingSigmoid, SlopeAnnealing, StraightThrough
from noisyact.noise import seeds_in_blocks
from noisyact.pairs import HARD_SIGMOID, HARD_TANH, RELU, HardPair, Pair, harden
from noisyact.precompilation import precompile
from noisyact.recurrent.backends import backend_info
from noisyact.recurrent.cells import NoisyGRUCell, NoisyLSTMCell, NoisyRNNCell
from noisyact.recurrent.layers import NoisyGRU, NoisyLSTM, NoisyRNN
from noisyact.schemes import NAH, NAN, NANI, NANIL, NANIS, Scheme, scheme

__all__ = [
    "HARD_SIGMOID", "HARD_TANH", "NAH", "NAN", "NANI", "NANIL", "NANIS", "RELU", "FiniteWatch", "GumbelGate",
    "HardConcrete", "HardPair", "NoiseScheduler", "NoisyActivation", "NoisyGRU", "NoisyGRUCell", "NoisyHardSigmoid",
    "NoisyHardTanh", "NoisyLSTM", "NoisyLSTMCell", "NoisyModule", "NoisyRNN", "NoisyRNNCell", "NoisyReLU", "Pair",
    "SaturatingSigmoid", "Scheme", "SlopeAnnealing", "StraightThrough", "accelerate", "additive_scores", "anneal",
    "backend_info", "deferred_gradients", "denoisify", "functional", "harden", "inventory", "noise_parameters",
    "noisify", "precompile", "saturation", "scheme", "seeds_in_blocks", "set_eval_noise", "set_noise_scale",
]  # fmt: skip

__version__ = "0.1.0"

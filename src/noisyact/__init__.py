"""Noisy activation functions for PyTorch: hard-saturating units whose noise grows with their saturation.

After Gulcehre, Moczulski, Denil and Bengio, "Noisy Activation Functions" (2016).
"""

from noisyact import anneal as anneal
from noisyact import functional as functional
from noisyact.activations import NoisyActivation as NoisyActivation
from noisyact.activations import NoisyHardSigmoid as NoisyHardSigmoid
from noisyact.activations import NoisyHardTanh as NoisyHardTanh
from noisyact.activations import NoisyModule as NoisyModule
from noisyact.activations import NoisyReLU as NoisyReLU
from noisyact.activations import noise_parameters as noise_parameters
from noisyact.activations import set_noise_scale as set_noise_scale
from noisyact.anneal import NoiseScheduler as NoiseScheduler
from noisyact.attention import additive_scores as additive_scores
from noisyact.conversion.convert import denoisify as denoisify
from noisyact.conversion.convert import noisify as noisify
from noisyact.conversion.inventory import inventory as inventory
from noisyact.deferral import deferred_gradients as deferred_gradients
from noisyact.diagnostics.finite import FiniteWatch as FiniteWatch
from noisyact.diagnostics.saturation import saturation as saturation
from noisyact.noise import seeds_in_blocks as seeds_in_blocks
from noisyact.pairs import HARD_SIGMOID as HARD_SIGMOID
from noisyact.pairs import HARD_TANH as HARD_TANH
from noisyact.pairs import RELU as RELU
from noisyact.pairs import HardPair as HardPair
from noisyact.pairs import Pair as Pair
from noisyact.pairs import harden as harden
from noisyact.recurrent.backends import backend_info as backend_info
from noisyact.recurrent.cells import NoisyGRUCell as NoisyGRUCell
from noisyact.recurrent.cells import NoisyLSTMCell as NoisyLSTMCell
from noisyact.recurrent.cells import NoisyRNNCell as NoisyRNNCell
from noisyact.recurrent.layers import NoisyGRU as NoisyGRU
from noisyact.recurrent.layers import NoisyLSTM as NoisyLSTM
from noisyact.recurrent.layers import NoisyRNN as NoisyRNN
from noisyact.schemes import NAH as NAH
from noisyact.schemes import NAN as NAN
from noisyact.schemes import NANI as NANI
from noisyact.schemes import NANIL as NANIL
from noisyact.schemes import NANIS as NANIS
from noisyact.schemes import Scheme as Scheme
from noisyact.schemes import scheme as scheme

__all__ = [
    "HARD_SIGMOID",
    "HARD_TANH",
    "NAH",
    "NAN",
    "NANI",
    "NANIL",
    "NANIS",
    "RELU",
    "FiniteWatch",
    "HardPair",
    "NoiseScheduler",
    "NoisyActivation",
    "NoisyGRU",
    "NoisyGRUCell",
    "NoisyHardSigmoid",
    "NoisyHardTanh",
    "NoisyLSTM",
    "NoisyLSTMCell",
    "NoisyModule",
    "NoisyRNN",
    "NoisyRNNCell",
    "NoisyReLU",
    "Pair",
    "Scheme",
    "additive_scores",
    "anneal",
    "backend_info",
    "deferred_gradients",
    "denoisify",
    "functional",
    "harden",
    "inventory",
    "noise_parameters",
    "noisify",
    "saturation",
    "scheme",
    "seeds_in_blocks",
    "set_noise_scale",
]

__version__ = "0.1.0"

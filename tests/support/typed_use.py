"""How a user's typed code uses noisyact: tests/test_types.py has mypy and pyright check it, and wrong uses besides."""

from typing import assert_type

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import noisyact as na
from noisyact.recurrent.functional import noisy_gru, noisy_lstm, noisy_rnn


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  # torch 2.9 has no types for it
        self.lstm = na.NoisyLSTM(8, 16, num_layers=2, batch_first=True, noise=na.NAH(c=0.3), gate_noise="nan")
        self.gru = na.NoisyGRU(16, 16, noise=None, hard=False)
        self.rnn = na.NoisyRNN(16, 16, nonlinearity="relu")
        self.tanh = na.NoisyHardTanh("nah:c=0.5", num_parameters=16)
        self.own = na.NoisyActivation(na.harden(torch.atan), na.NANIS())

    def forward(self, x: Tensor) -> Tensor:
        assert_type(self.lstm(x), tuple[Tensor, tuple[Tensor, Tensor]])
        y, state = self.lstm(x)
        y, _ = self.lstm(x, state, reset=torch.zeros(3, 2, dtype=torch.bool), seed=7)
        assert_type(self.gru(y), tuple[Tensor, Tensor])
        z, h = self.gru(y)
        z, _ = self.rnn(z, h)
        assert_type(self.tanh(z), Tensor)
        return self.own(self.tanh(z))


def packed(layer: na.NoisyLSTM, gru: na.NoisyGRU, x: PackedSequence) -> PackedSequence:
    assert_type(layer(x), tuple[PackedSequence, tuple[Tensor, Tensor]])
    assert_type(gru(x), tuple[PackedSequence, Tensor])
    return layer(x)[0]


def cells(x: Tensor) -> Tensor:
    h, c = na.NoisyLSTMCell(8, 16)(x)
    assert_type(na.NoisyLSTMCell(8, 16)(x, (h, c)), tuple[Tensor, Tensor])
    assert_type(na.NoisyGRUCell(8, 16)(x), Tensor)
    return na.NoisyRNNCell(8, 16)(x, h)


def functions(x: Tensor, w: Tensor) -> Tensor:
    assert_type(noisy_lstm(x, None, w, w, noise="nah"), tuple[Tensor, tuple[Tensor, Tensor]])
    assert_type(noisy_gru(x, None, w, w), tuple[Tensor, Tensor])
    assert_type(noisy_rnn(x, None, w, w), tuple[Tensor, Tensor])
    assert_type(na.functional.noisy(x, na.HARD_TANH, na.NAN()), Tensor)
    assert_type(na.additive_scores(x, x, nn.Tanh(), w), Tensor)
    return na.functional.noisy_hard_tanh(x, "nan", torch.ones(1), torch.randn(3))


def convert(model: Tagger, plain: nn.Sequential) -> None:
    assert_type(na.noisify(model, "nah", filter_fn=lambda module, name: name != "tanh"), Tagger)
    assert_type(na.denoisify(model), Tagger)
    assert_type(na.accelerate(plain, verbose=True), nn.Sequential)
    assert_type(na.scheme("nah:c=0.3"), na.Scheme)
    assert_type(na.set_noise_scale(model, 0.5), int)
    assert_type(na.backend_info(model.lstm), str)
    scheduler = na.NoiseScheduler(model, na.anneal.linear(30.0, 0.5, 10_000))
    scheduler.step()
    assert_type(scheduler.value, float)
    scheduler.load_state_dict(scheduler.state_dict())
    print(na.inventory(model), na.saturation(model, torch.ones(3, 3)))
    print([tuple(p.shape) for p in na.noise_parameters(model)])
    with na.FiniteWatch(model) as watch, na.deferred_gradients(), na.seeds_in_blocks():
        print(watch.first)

"""Zoneout and recurrent dropout: how many units keep their value, the expectation, and the ends of the range."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import noisyact as na
from noisyact.ops.recurrent import reference
from noisyact.ops.recurrent.types import StateRules
from noisyact.recurrent import functional

LAYERS = {"lstm": na.NoisyLSTM, "gru": na.NoisyGRU, "rnn": na.NoisyRNN}
CELLS = {"lstm": na.NoisyLSTMCell, "gru": na.NoisyGRUCell, "rnn": na.NoisyRNNCell}


def test_the_share_of_units_and_the_lock_of_the_dropout():
    rules = StateRules(mask_seed=torch.tensor(3), zoneout_h=0.2, zoneout_c=0.7, recurrent_dropout=0.4)
    steps, batch, hidden = 20, 50, 40
    keep_h, keep_c, dropout = reference.draw_masks("lstm", rules, [batch] * steps, hidden, hidden, torch.zeros(1))
    for mask, rate in ((keep_h, 0.2), (keep_c, 0.7), (dropout == 0, 0.4)):
        shares = mask.float()
        assert abs(shares.mean() - rate) < 5 * (rate * (1 - rate) / mask.numel()) ** 0.5
    assert dropout.shape == (batch, hidden)
    assert set(dropout.unique().tolist()) == {0.0, torch.tensor(1 / 0.6).item()}
    masks = keep_h.reshape(steps, batch, hidden), keep_c.reshape(steps, batch, hidden)
    for a, b in ((masks[0][1:], masks[0][:-1]), (masks[0][:, 1:], masks[0][:, :-1]), masks):
        both = torch.stack([a.reshape(-1).float(), b.reshape(-1).float()])
        assert abs(torch.corrcoef(both)[0, 1]) < 5 / both.shape[1] ** 0.5


@pytest.mark.parametrize("kind", LAYERS)
def test_zoneout_keeps_the_value_of_units(kind):
    layer = LAYERS[kind](3, 50, noise=None, zoneout=0.6, backend="reference")
    plain = LAYERS[kind](3, 50, noise=None, backend="reference")
    plain.load_state_dict(layer.state_dict())
    y = layer(torch.randn(30, 8, 3))[0]
    assert abs((y[1:] == y[:-1]).float().mean() - 0.6) < 0.03
    x, h = torch.randn(1, 8, 3), torch.randn(1, 8, 50)
    state = (h, torch.randn(1, 8, 50)) if kind == "lstm" else h
    new, old = layer.eval()(x, state)[0], plain(x, state)[0]
    torch.testing.assert_close(new, 0.6 * h + 0.4 * old)  # of c the paper's h' is independent


@pytest.mark.parametrize("kind", LAYERS)
def test_the_mean_over_seeds_is_the_evaluation(kind):
    """For one step, of which the state is a linear function of the masks."""
    cell = CELLS[kind](3, 4, noise=None, zoneout=0.3, dtype=torch.float64)
    x, h = torch.randn(20_000, 3, dtype=torch.float64)[:1].expand(20_000, 3), torch.randn(1, 4, dtype=torch.float64)
    h = h.expand(20_000, 4)
    hx = (h, 2 * h) if kind == "lstm" else h
    states = (tree_leaves(own(x, hx)) for own in (cell, copy.deepcopy(cell).eval()))
    for drawn, expected in zip(*states, strict=True):
        torch.testing.assert_close(drawn.mean(0), expected[0], rtol=0, atol=0.06)


@pytest.mark.parametrize("kind", LAYERS)
def test_the_ends_of_the_range(kind):
    x = 2 * torch.randn(6, 3, 3)
    layer, options = LAYERS[kind](3, 4, 2), {"zoneout": 0.0, "recurrent_dropout": 0.0}
    none = LAYERS[kind](3, 4, 2, **options)
    none.load_state_dict(layer.state_dict())
    torch.testing.assert_close(none(x, seed=1), layer(x, seed=1), rtol=0, atol=0)
    frozen = LAYERS[kind](3, 4, 1, zoneout=1 - 1e-12)
    h = torch.randn(1, 3, 4)
    y, _ = frozen(x, (h, h) if kind == "lstm" else h)
    assert torch.equal(y, h.expand(6, 3, 4))
    lonely = LAYERS[kind](3, 4, 1, recurrent_dropout=1 - 1e-12, noise=None)
    weights = {name: torch.zeros_like(w) if "weight_hh" in name else w for name, w in lonely.state_dict().items()}
    y = lonely(x)[0]
    lonely.load_state_dict(weights)
    torch.testing.assert_close(lonely.eval()(x)[0], y)  # as if there were no recurrent weights


def test_an_lstm_by_hand():
    """Two steps by the paper's equations: h' = o tanh(c') with c' before zoneout, and the same dropout at both."""
    hidden, seed = 5, torch.tensor(9)
    weights = [torch.randn(20, 3), torch.randn(20, 5), torch.randn(20), torch.randn(20)]
    x, h, c = torch.randn(2, 4, 3), torch.randn(4, 5), torch.randn(4, 5)
    options = {"zoneout": (0.3, 0.6), "recurrent_dropout": 0.4, "noise": None, "hard": False, "seed": seed}
    y, last = functional.noisy_lstm(x, (h, c), *weights, **options)
    rules = StateRules(mask_seed=seed, zoneout_h=0.3, zoneout_c=0.6, recurrent_dropout=0.4)
    keep_h, keep_c, dropout = reference.draw_masks("lstm", rules, [4, 4], hidden, hidden, h)
    for t in range(2):
        a = F.linear(x[t], weights[0], weights[2]) + F.linear(dropout * h, weights[1], weights[3])
        i, f, g, o = a.chunk(4, 1)
        new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        new_h = o.sigmoid() * new_c.tanh()
        h = torch.where(keep_h[4 * t : 4 * t + 4], h, new_h)
        c = torch.where(keep_c[4 * t : 4 * t + 4], c, new_c)
        torch.testing.assert_close(y[t], h)
    torch.testing.assert_close(last, (h, c))


def test_what_is_shown_and_kept():
    layer = na.NoisyLSTM(3, 4, zoneout=(0.1, 0.5), recurrent_dropout=0.2)
    assert "zoneout=(0.1, 0.5), recurrent_dropout=0.2" in repr(layer)
    assert "zoneout" not in repr(na.NoisyLSTM(3, 4, zoneout=(0, 0)))
    assert "zoneout=0.3" in repr(na.NoisyGRUCell(3, 4, zoneout=0.3))
    again = pickle.loads(pickle.dumps(layer))
    assert again.zoneout == (0.1, 0.5)
    old = copy.deepcopy(na.NoisyLSTM(3, 4))
    for name in ("zoneout", "recurrent_dropout"):  # a module of an earlier version has no such attribute
        del old.__dict__[name]
    old(torch.randn(2, 1, 3))
    assert "zoneout" not in repr(old)
    with pytest.warns(UserWarning, match="torch has no zoneout"):
        assert na.denoisify(layer) is not None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"zoneout": 1.0}, ValueError, r"zoneout=1.0: a probability in \[0, 1\)"),
        ({"zoneout": -0.1}, ValueError, "zoneout=-0.1"),
        ({"zoneout": (0.1, 1.5)}, ValueError, "zoneout of c=1.5"),
        ({"zoneout": (0.1, 0.2, 0.3)}, ValueError, r"a pair \(zoneout of h, zoneout of c\)"),
        ({"zoneout": "0.1"}, TypeError, "zoneout must be a number, not '0.1'"),
        ({"recurrent_dropout": 1.0}, ValueError, "recurrent_dropout=1.0"),
        ({"recurrent_dropout": float("nan")}, ValueError, "recurrent_dropout=nan"),
    ],
)
def test_wrong_rates_are_named(options, error, message):
    for kind in (na.NoisyLSTM, na.NoisyLSTMCell):
        with pytest.raises(error, match=message):
            kind(3, 4, **options)


def test_a_pair_is_for_the_lstm():
    with pytest.raises(ValueError, match="for an LSTM a pair"):
        na.NoisyGRU(3, 4, zoneout=(0.1, 0.2))

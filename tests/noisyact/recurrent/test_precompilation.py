import copy

import pytest
import torch
from torch import nn

import noisyact as na


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.rnn, self.head = (
            nn.BatchNorm1d(5),
            na.NoisyLSTM(5, 6, num_layers=2, dropout=0.5),
            nn.Linear(6, 3),
        )

    def forward(self, x, tokens=None):
        y, states = self.rnn(self.norm(x.flatten(0, 1)).view(x.shape))
        return {"logits": self.head(y), "states": states, "tokens": tokens}


def test_nothing_changes():
    model = Tagger().eval()
    model.rnn.train()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    before, generator = copy.deepcopy(model), torch.get_rng_state()
    assert na.precompile(model, (4, 3, 5), tokens=torch.tensor([1, 2])) is model
    assert torch.equal(torch.get_rng_state(), generator)
    for now, then in zip(model.modules(), before.modules(), strict=True):
        assert now.training == then.training
    for (name, now), then in zip(model.state_dict().items(), before.state_dict().values(), strict=True):
        assert torch.equal(now, then), name
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert all(p.grad is None for p in model.rnn.parameters())


def test_it_runs_both_modes_and_the_backward_pass():
    calls = []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
            self.weight.register_hook(lambda gradient: calls.append("backward"))

        def forward(self, x):
            calls.append(("training" if self.training else "evaluation", x.dtype, tuple(x.shape)))
            return x * self.weight

    na.precompile(Watched(), (2, 3))
    shape = (torch.float64, (2, 3))
    assert calls == [("training", *shape), "backward", ("evaluation", *shape)]


def test_the_backward_pass_starts_from_the_first_output_and_from_all():
    calls = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x.clone(), x.clone()

        @staticmethod
        def backward(ctx, *gradients):
            calls.append([gradient is not None for gradient in gradients])
            return gradients[0]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            first, second = Watched.apply(x * self.weight)
            return first, {"second": second}

    na.precompile(Model(), (2, 3))
    assert calls == [[True, False], [True, True]]


def test_wrong_arguments():
    model = na.NoisyGRU(3, 4)
    with pytest.raises(ValueError, match=r"at least 1, not \(2, 0, 3\)"):
        na.precompile(model, (2, 0, 3))
    with pytest.raises(TypeError, match="Module"):
        na.precompile(lambda x: x, (2, 3))


@pytest.mark.gpu
@pytest.mark.parametrize("layer", [na.NoisyLSTM, na.NoisyGRU])
def test_training_compiles_nothing_more(layer, tmp_path, monkeypatch):
    from triton import knobs

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    model = layer(24, 88, device="cuda")  # sizes of no other test, so that nothing is compiled yet
    na.precompile(model, (20, 16, 24))
    compiled = sorted(tmp_path.iterdir())
    assert compiled
    for steps, batch in ((20, 16), (33, 16), (7, 13), (50, 9)):
        output, state = model.train()(torch.randn(steps, batch, 24, device="cuda"))
        output.sum().backward(retain_graph=True)
        (output.sum() + sum(part.sum() for part in (state if isinstance(state, tuple) else (state,)))).backward()
        with torch.no_grad():
            model.eval()(torch.randn(steps, batch, 24, device="cuda"))
    assert sorted(tmp_path.iterdir()) == compiled

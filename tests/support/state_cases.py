"""Layers with resets, replayed noise, zoneout and recurrent dropout, and the same sequences one by one, to compare."""

import dataclasses

import torch
from hypothesis import strategies as st
from torch import Tensor

import noisyact as na

LAYERS = {"lstm": na.NoisyLSTM, "gru": na.NoisyGRU, "rnn": na.NoisyRNN}


@dataclasses.dataclass
class StateCase:
    """A layer of the given backend in training mode, its input, resets and states. All are drawn from `draw`."""

    kind: str
    backend: str = "reference"
    steps: int = 5
    batch: int = 3
    hidden: int = 4
    layers: int = 1
    bidirectional: bool = False
    projection: int = 0
    noise: str | None = "nah"
    hard: bool = True
    learned: bool = True
    zoneout: float = 0.0
    recurrent_dropout: float = 0.0
    dropout: float = 0.0
    share: float = 0.3
    draw: int = 0
    dtype: torch.dtype = torch.float64
    device: str = "cpu"

    def __post_init__(self):
        generator = torch.Generator().manual_seed(self.draw)
        options = {"proj_size": self.projection} if self.kind == "lstm" else {}
        self.layer = LAYERS[self.kind](
            3, self.hidden, self.layers, bidirectional=self.bidirectional, noise=self.noise, hard=self.hard,
            zoneout=self.zoneout, recurrent_dropout=self.recurrent_dropout, dropout=self.dropout * (self.layers > 1),
            backend=self.backend, dtype=self.dtype, device=self.device, **options,
        )  # fmt: skip
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)

        def leaf(*shape: int) -> Tensor:
            values = 2 * torch.randn(*shape, generator=generator, dtype=torch.float64)
            return values.to(self.device, self.dtype).requires_grad_()

        self.directions = 1 + self.bidirectional
        count, units = self.layers * self.directions, options.get("proj_size") or self.hidden
        widths = (units, self.hidden) if self.kind == "lstm" else (units,)
        self.x = leaf(self.steps, self.batch, 3)
        self.first = [leaf(count, self.batch, width) for width in widths]
        self.anew = [leaf(count, 1, width) for width in widths]
        self.reset = (torch.rand(self.steps, self.batch, generator=generator) < self.share).to(self.device)
        self.seed = 1000 + self.draw

    def state(self, tensors):
        """A state in the form of hx."""
        return tuple(tensors) if self.kind == "lstm" else tensors[0]

    def leaves(self):
        return [self.x, *self.first, *(self.anew if self.learned else []), *self.layer.parameters()]

    def together(self) -> list[Tensor]:
        """The output and the final states of one call."""
        reset_to = self.state(self.anew) if self.learned else None
        y, last = self.layer(self.x, self.state(self.first), reset=self.reset, reset_to=reset_to, seed=self.seed)
        return [y, *(last if self.kind == "lstm" else (last,))]

    def one_by_one(self) -> list[Tensor]:
        """The same from calls for each sequence between two resets."""
        outputs, ends = [], []
        for b in range(self.batch):
            own = slice(b, b + 1)
            begins = sorted({0, *torch.nonzero(self.reset[:, b]).flatten().tolist()})
            rows, first_end, last_end = [], None, None
            for begin, end in zip(begins, [*begins[1:], self.steps], strict=True):
                state = []
                for first, anew in zip(self.first, self.anew, strict=True):
                    given, fresh = first[:, own], anew if self.learned else torch.zeros_like(anew)
                    # The forward direction enters a sequence at its first step, the reversed one at its last.
                    forward = given if begin == 0 and not self.reset[0, b] else fresh
                    backward = given if end == self.steps else fresh
                    parts = [forward, backward][: self.directions]
                    chosen = [parts[i % self.directions][i : i + 1] for i in range(len(first))]
                    state.append(torch.cat(chosen))
                y, last = self.layer(
                    self.x[begin:end, own], self.state(state), seed=self.seed, first_step=begin,
                    rows=torch.tensor([b], device=self.device),
                )  # fmt: skip
                rows.append(y)
                last_end = last if self.kind == "lstm" else (last,)
                first_end = first_end or last_end
            outputs.append(torch.cat(rows))
            both = [last_end, first_end]
            ends.append(
                [
                    torch.cat([both[i % self.directions][n][i : i + 1] for i in range(len(self.first[0]))])
                    for n in range(len(self.first))
                ]
            )
        return [torch.cat(outputs, 1), *(torch.cat(parts, 1) for parts in zip(*ends, strict=True))]

    def gradients(self, outputs: list[Tensor]) -> list[Tensor]:
        """Those of a sum of all outputs with fixed weights."""
        generator = torch.Generator().manual_seed(1)
        weights = [torch.randn(out.shape, generator=generator).to(out.device, out.dtype) for out in outputs]
        total = sum((out * weight).sum() for out, weight in zip(outputs, weights, strict=True))
        return list(torch.autograd.grad(total, self.leaves(), allow_unused=True, materialize_grads=True))


def state_cases(backend: str, **fixed) -> st.SearchStrategy[StateCase]:
    """Cases with any combination of options; `fixed` overrides them, such as `dtype` for a kernel in float32."""
    drawn = {
        "kind": st.sampled_from(sorted(LAYERS)), "steps": st.integers(1, 6), "batch": st.integers(1, 3),
        "hidden": st.integers(1, 5), "layers": st.integers(1, 2), "bidirectional": st.booleans(),
        "projection": st.just(0), "noise": st.sampled_from([None, "nah", "nan:c=0.5", "nanil"]), "hard": st.booleans(),
        "learned": st.booleans(), "zoneout": st.sampled_from([0.0, 0.3]),
        "recurrent_dropout": st.sampled_from([0.0, 0.4]), "dropout": st.sampled_from([0.0, 0.5]),
        "share": st.sampled_from([0.0, 0.2, 0.5, 1.0]), "draw": st.integers(0, 10**6),
    }  # fmt: skip
    drawn |= {name: st.just(value) for name, value in fixed.items()}

    def case(options: dict) -> StateCase:
        if options["kind"] == "lstm" and options["draw"] % 2 and "projection" not in fixed and options["hidden"] > 1:
            options = options | {"projection": options["hidden"] - 1}
        return StateCase(backend=backend, **options)

    return st.fixed_dictionaries(drawn).map(case)


def check_resets(case: StateCase, rtol: float = 1e-7, atol: float = 1e-8) -> None:
    """A call with resets equals calls for each sequence alone: values and gradients."""
    mine, right = case.together(), case.one_by_one()
    torch.testing.assert_close(mine, right, rtol=rtol, atol=atol)
    torch.testing.assert_close(case.gradients(mine), case.gradients(right), rtol=rtol, atol=atol)

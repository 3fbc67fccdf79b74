"""A recurrent layer or cell with given noise by the GPU's kernels and by the reference, for comparison."""

import dataclasses

import torch

import noisyact as na
from noisyact.noise import recurrent_normal, recurrent_positions
from noisyact.ops.recurrent import reference
from noisyact.ops.recurrent.gpu import layers as gpu
from noisyact.ops.recurrent.gpu.plan import Plan, backward_plan, forward_plan, padded_size, slice_size
from noisyact.ops.recurrent.types import GATES, NONLINEARITIES, CellNoise, LayerWeights, StateRules


@dataclasses.dataclass
class Case:
    """One layer in one direction."""

    kind: str
    steps: int
    batch: int
    hidden: int
    noise: str | None = "nah"
    gate_noise: str | None = None
    hard: bool = True
    packed: bool = False
    reverse: bool = False
    state: bool = True
    bias: bool = True
    has_p: bool = True
    draw: bool = True
    inputs: int = 5
    projection: int = 0
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    share: float | None = None
    """The share of resets; None for a layer without resets."""
    learned: bool = True
    """Whether the state after a reset is given; otherwise it is zeros."""
    zoneout: tuple[float, float] = (0.0, 0.0)
    dropout: float = 0.0
    masked: bool = True
    """Whether zoneout and recurrent dropout draw masks."""
    first_step: int = 0
    places: bool = False
    """Whether the rows have other positions than 0, 1, 2, ..."""

    def __post_init__(self):
        gates, count = GATES[self.kind], NONLINEARITIES[self.kind]
        self.sizes = [self.batch] * self.steps
        if self.packed:
            later = sorted(torch.randint(1, self.batch + 1, (self.steps - 1,)).tolist(), reverse=True)
            self.sizes = [self.batch, *later]
        rows, h = sum(self.sizes), self.hidden
        output = self.projection or h
        scale = 1 / output**0.5  # so that errors do not grow from step to step, and half of all units saturate
        self.x = self._leaf(rows, self.inputs)
        self.h0 = self._leaf(self.batch, output) if self.state else None
        self.c0 = self._leaf(self.batch, h) if self.state and self.kind == "lstm" else None
        self.w_ih, self.w_hh = self._leaf(gates * h, self.inputs, scale=0.7), self._leaf(gates * h, output, scale=scale)
        self.b_ih, self.b_hh = (self._leaf(gates * h) if self.bias else None for _ in range(2))
        self.p = self._leaf(count * h) if self.has_p else None
        self.w_hr = self._leaf(output, h, scale=2 / h**0.5) if self.projection else None
        self.seed = torch.tensor(2**62 + 12345, device=self.device) if self.draw else None
        state = None if self.noise is None else na.scheme(self.noise)
        gate = state if self.gate_noise is None else na.scheme(self.gate_noise)
        scales = (torch.tensor(0.0 if s is None else s.scale, device=self.device) for s in (state, gate))
        self.cell_noise = CellNoise(state, gate, *scales, self.hard)
        self.reset_h = self.reset_c = self.reset = self.rows = None
        if self.share is not None:
            self.reset = (torch.rand(self.steps, self.batch) < self.share).to(self.device)
            if self.learned:
                self.reset_h = self._leaf(self.batch, output)
                self.reset_c = self._leaf(self.batch, h) if self.kind == "lstm" else None
        if self.places:
            self.rows = (torch.randint(2**40, (self.batch,)) - 2**39).to(self.device)
        self.mask_seed = torch.tensor(2**61 + 77, device=self.device) if self.masked else None

    def _leaf(self, *shape, scale=1.0):
        values = torch.randn(*shape, dtype=torch.float64) * scale
        return values.to(self.dtype).to(self.device).requires_grad_()

    def leaves(self):
        names = ("x", "h0", "c0", "w_ih", "w_hh", "b_ih", "b_hh", "p", "w_hr", "reset_h", "reset_c")
        named = {n: getattr(self, n) for n in names}
        return {name: leaf for name, leaf in named.items() if leaf is not None}

    def rules(self, wide=None):
        """The rules for the state, with the leaves of the reference if they are given; None for none."""
        reset_h, reset_c = (self.reset_h, self.reset_c) if wide is None else map(wide.get, ("reset_h", "reset_c"))
        rates = (*self.zoneout, self.dropout, self.first_step)
        rules = StateRules(self.reset, reset_h, reset_c, self.rows, self.mask_seed, *rates)
        return rules if rules.in_use() else None

    def features(self):
        """The rules in use, in words."""
        parts = {
            "reset": self.share is not None, "anew": self.reset_h is not None, "zoneout": any(self.zoneout),
            "dropout": self.dropout > 0, "masked": self.masked and (any(self.zoneout) or self.dropout > 0),
            "first_step": self.first_step > 0, "rows": self.places,
        }  # fmt: skip
        return "+".join(name for name, is_used in parts.items() if is_used)

    def by_kernels(self):
        """The results of the GPU's kernels."""
        h, c = (None if state is None else state.unsqueeze(0) for state in (self.h0, self.c0))
        layer = LayerWeights(self.w_ih, self.w_hh, self.b_ih, self.b_hh, self.p, self.w_hr)
        rules = self.rules()
        y, h_n, c_n = gpu.layers(
            self.kind, self.sizes, self.x, h, c, [layer], [self.seed], self.cell_noise, self.reverse,
            None if rules is None else [rules],
        )  # fmt: skip
        return [y, h_n[0]] + ([c_n[0]] if self.kind == "lstm" else [])

    def reference(self):
        """The results in float64, and the leaves they come from."""
        wide = {name: leaf.detach().double().requires_grad_() for name, leaf in self.leaves().items()}
        count = NONLINEARITIES[self.kind]
        xi = None
        if self.draw:
            number = torch.float64 if self.dtype is torch.float64 else torch.float32
            places = recurrent_positions(self.sizes, self.x.device, self.first_step, self.rows)
            xi = recurrent_normal(self.seed, *places, count, self.hidden, number).double()
        zeros = wide["x"].new_zeros(self.batch, self.projection or self.hidden)
        zeros_c = wide["x"].new_zeros(self.batch, self.hidden)
        weights = LayerWeights(*(wide.get(name) for name in LayerWeights._fields))
        h, c = wide.get("h0", zeros), wide.get("c0", zeros_c) if self.kind == "lstm" else None
        rules = self.rules(wide)
        y, h_n, c_n = reference.layer(
            self.kind, wide["x"], self.sizes, h, c, weights, xi, self.cell_noise, self.reverse,
            *(() if rules is None else (rules,)),
        )  # fmt: skip
        return [y, h_n] + ([c_n] if self.kind == "lstm" else []), wide

    def gradients(self, outputs, leaves):
        """Of a sum of all outputs with fixed weights."""
        generator = torch.Generator().manual_seed(1)
        weights = [torch.randn(out.shape, generator=generator).to(out.device, out.dtype) for out in outputs]
        total = sum((out * w).sum() for out, w in zip(outputs, weights, strict=True))
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, found, strict=True))


PROCESSORS = 132
"""Those of an H200: the plans of the cases have all steps in one launch."""


def _together(case):
    """Weights in registers, and programs that wait for each other."""
    forward = Plan(True, 16, 16, _power_of_two(-(-case.hidden // 8)), True, 3, 8, 8)
    backward = Plan(True, 16, 16, 0, True, 3, 8, 8)
    return forward, backward._replace(
        depth=_power_of_two(slice_size(case.kind, padded_size(case.hidden, backward), backward))
    )


def _power_of_two(number):
    return max(16, 1 << (number - 1).bit_length())


PLANS = {
    "together": _together,
    "registers": lambda case: (
        forward_plan(case.kind, case.batch, case.hidden, 4, PROCESSORS),
        backward_plan(case.kind, case.batch, case.hidden, 4, PROCESSORS),
    ),
    "in_parts": lambda case: (
        Plan(True, 16, 16, 16, False, 1, 4),
        Plan(True, 16, 16, 16, False, 1, 4, 4),
    ),
    "one_slice": lambda case: (Plan(True, 16, 16, 16, False, 1, 4), Plan(True, 32, 16, 16, False, 1, 4, 1)),
}


def by_teams(case):
    """Plans with all steps in one launch, where programs wait for each other."""
    team = 2 if case.kind == "lstm" else 4
    return Plan(True, 16, 16, 16, False, 1, 4), Plan(True, 16, 16, 16, False, 1, 4, team=team)

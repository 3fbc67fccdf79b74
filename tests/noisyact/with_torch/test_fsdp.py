"""FSDP2 frees the weights after forward and gathers them again for backward: gradients equal those of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from one_seed import OneSeed
from ranks import RANKS, run
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import noisyact as na

KINDS = {"lstm": na.NoisyLSTM, "gru": na.NoisyGRU}
WRAPPINGS = ["layer", "model", "layer and model"]
CASES = [
    (kind, wrapping, reshard, backend)
    for kind in KINDS
    for wrapping in WRAPPINGS
    for reshard in (True, False)
    for backend in ("auto", "reference")
]


class Tagger(nn.Module):
    """A layer in the middle of a model."""

    def __init__(self, kind: str, backend: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(3, 6)
        self.layer = KINDS[kind](6, 8, noise="nah:c=30.0", backend=backend)
        self.activation = na.NoisyHardTanh("nah:c=30.0", num_parameters=8)
        self.tag = nn.Linear(8, 2)
        nn.init.normal_(self.embed.weight, std=3.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.tag(self.activation(3 * self.layer(self.embed(x))[0]))


def inputs(rank: int) -> Tensor:
    return torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(rank))


def step(model: nn.Module, x: Tensor) -> Tensor:
    """A step with noise of one seed on all ranks."""
    with OneSeed(2**61 + 5):
        loss = model(x).square().sum()
        held = [torch.full((n,), torch.nan) for n in range(1, 400, 3)]  # takes what forward has given back
        loss.backward()
        del held
        return loss.detach()


def sharded(case: tuple[str, str, bool, str]) -> dict[str, Tensor]:
    kind, wrapping, reshard, backend = case
    model = Tagger(kind, backend)
    if "layer" in wrapping:
        fully_shard(model.layer, reshard_after_forward=reshard)
    if "model" in wrapping:
        fully_shard(model, reshard_after_forward=reshard)
    loss = step(model, inputs(dist.get_rank()))
    gradients = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        if hasattr(gradient, "full_tensor"):
            gradient = gradient.full_tensor()
        else:  # nobody shards it: the ranks have gradients of their own
            dist.all_reduce(gradient)
            gradient /= RANKS
        gradients[name] = gradient
    return {"loss": loss, **gradients}


def sharded_all() -> dict[tuple, dict[str, Tensor]]:
    return {case: sharded(case) for case in CASES}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    return run(sharded_all, folder)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_gradients_are_those_of_one_process(case, results) -> None:
    model = Tagger(case[0], "reference")
    losses = [step(model, inputs(rank)) for rank in range(RANKS)]
    quiet = Tagger(case[0], "reference")
    na.set_noise_scale(quiet, 0.0)
    step(quiet, inputs(0))
    assert not torch.allclose(quiet.layer.weight_hh_l0.grad, model.layer.weight_hh_l0.grad, rtol=0.1)  # noise matters
    for rank, found in enumerate(results):
        torch.testing.assert_close(found[case]["loss"], losses[rank], rtol=1e-4, atol=1e-4)
        for name, parameter in model.named_parameters():
            expected = parameter.grad / RANKS
            scale = expected.abs().max().item()
            torch.testing.assert_close(found[case][name], expected, rtol=1e-3, atol=1e-4 * scale)

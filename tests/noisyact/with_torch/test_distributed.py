"""Several processes: different noise on every rank, synchronised parameters, sharding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from ranks import RANKS, run
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import noisyact as na
from noisyact import functional

SCHEMES = ["nan:c=2.0", "nah:c=2.0", "nani:sigma=0.5", "nanil:c=30.0", "nanis:sigma=2.0"]


def network(scheme: str) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), na.NoisyHardTanh(scheme, num_parameters=16), nn.Linear(16, 16),
        na.NoisyHardSigmoid(scheme), nn.Linear(16, 1),
    )  # fmt: skip
    nn.init.normal_(model[0].weight, std=2.0)
    return model


def train(model: nn.Module, steps: int) -> None:
    """The ranks see different data and were seeded alike."""
    data = torch.Generator().manual_seed(dist.get_rank())
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        x = torch.randn(16, 8, generator=data)
        optimizer.zero_grad()
        (model(x) - x[:, :1]).square().mean().backward()
        optimizer.step()


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """What each rank found, by the name of the work: one start of the processes for all of it."""
    ranks = run(all_work, tmp_path_factory.mktemp("ranks"))
    return {name: [of_rank[name] for of_rank in ranks] for name in ranks[0]}


def all_work() -> dict:
    return {"noise": noise_of_a_rank(), "trained": trained_by_every_scheme(), "sharded": sharded_and_replicated()}


def noise_of_a_rank() -> dict[str, Tensor]:
    x = torch.full((20_000,), 3.0)
    layer = na.NoisyHardTanh("nan:c=2.0")
    nn.init.ones_(layer.p)

    def drawn(run) -> Tensor:
        torch.manual_seed(5)
        return run(x.clone().requires_grad_()).detach()

    return {
        "torch": drawn(torch.randn_like),
        "functional": drawn(lambda x: functional.noisy_hard_tanh(x, "nan:c=2.0")),
        "module": drawn(layer),
        "generator": drawn(lambda x: functional.noisy_hard_tanh(x, "nan", generator=torch.Generator().manual_seed(5))),
        "checkpointed": drawn(lambda x: checkpoint(layer, x, use_reentrant=False)),
        "compiled": drawn(torch.compile(layer, fullgraph=True, backend="aot_eager")),
        "seed": drawn(lambda x: functional.noisy_hard_tanh(x, "nan", seed=torch.tensor(5))),
    }


def test_ranks_seeded_alike_draw_different_noise(found: dict) -> None:
    first, second = found["noise"]
    for name in first:
        correlation = torch.corrcoef(torch.stack([first[name], second[name]]))[0, 1].item()
        if name in ("torch", "seed"):  # the ranks were seeded alike; and a seed by argument is the caller's word
            assert torch.equal(first[name], second[name])
        else:
            assert abs(correlation) < 0.03, (name, correlation)
    assert torch.equal(first["functional"], first["module"])


def trained_by_every_scheme() -> dict[str, dict[str, Tensor]]:
    trained = {}
    for scheme in SCHEMES:
        model = DistributedDataParallel(network(scheme))
        train(model, steps=20)
        trained[scheme] = {name: p.detach() for name, p in model.module.named_parameters()}
    return trained


def test_parameters_stay_together(found: dict) -> None:
    """DDP also raises in the second step if any parameter had no gradient in the first."""
    first, second = found["trained"]
    for scheme in SCHEMES:
        start = dict(network(scheme).named_parameters())
        assert first[scheme].keys() == start.keys()
        for name, parameter in first[scheme].items():
            assert torch.equal(parameter, second[scheme][name]), (scheme, name)
            assert parameter.isfinite().all()
        assert not torch.equal(first[scheme]["0.weight"], start["0.weight"])


def sharded_and_replicated() -> dict[str, list[dict[str, Tensor]]]:
    mesh = init_device_mesh("cpu", (RANKS,))
    trained = {}
    for scheme in SCHEMES:
        replicated, sharded = DistributedDataParallel(network(scheme)), network(scheme)
        for layer in sharded:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        train(replicated, steps=3)
        train(sharded, steps=3)
        trained[scheme] = [
            {name: p.detach() for name, p in replicated.module.named_parameters()},
            {name: p.full_tensor().detach() for name, p in sharded.named_parameters()},
        ]
    return trained


def test_sharded_training_equals_replicated_training(found: dict) -> None:
    for of_rank in found["sharded"]:
        for scheme in SCHEMES:
            replicated, sharded = of_rank[scheme]
            assert replicated.keys() == sharded.keys()
            for name in replicated:
                torch.testing.assert_close(sharded[name], replicated[name])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_process_is_rank_zero_and_draws_as_without_a_group(scheme: str, tmp_path: Path) -> None:
    x = torch.full((100,), 3.0)
    torch.manual_seed(5)
    alone = functional.noisy_hard_tanh(x, scheme)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        torch.manual_seed(5)
        assert torch.equal(functional.noisy_hard_tanh(x, scheme), alone)
    finally:
        dist.destroy_process_group()

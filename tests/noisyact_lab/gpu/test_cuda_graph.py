"""CUDA graphs and batches drawn in advance do not change a run's results."""

import pytest
import torch
from mnist_cases import made
from tiny import MNIST as TINY
from torch import Tensor, nn

import noisyact as na
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.parallel import streams
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.mixture.mixture import MIXTURE, Mixture
from noisyact_lab.experiments.mnist import MNIST, Digits
from noisyact_lab.experiments.unique import UNIQUE, Unique, different, sequences
from noisyact_lab.gpu.cuda_graph import captured, check_kernels
from noisyact_lab.tasks.batches import RandomBatches

CUDA = torch.device("cuda")


def test_on_a_cpu_the_step_is_as_it_is():
    def step(x):
        return x

    assert captured(step, [torch.zeros(2)]) is step
    check_kernels(torch.device("cpu"))
    for wrong, said in (([], "none"), ([torch.zeros(1), torch.zeros(1, device="meta")], r"\['cpu', 'meta'\]")):
        with pytest.raises(ValueError, match=f"must be on one device, not on {said}"):
            captured(step, wrong)


def test_draws_are_the_same_however_many_are_made_at_once():
    """They also stop at an evaluation, where the generator's state is saved, and at the end."""
    generator, asked = torch.Generator().manual_seed(1), []

    def draw(first: int, last: int) -> Tensor:
        asked.append((first, last))
        return torch.randint(3000, (last - first, 7), generator=generator)

    draws, alone = RandomBatches(draw, 210, 120, "cpu"), torch.Generator().manual_seed(1)
    for index in range(210):
        assert torch.equal(draws.at(index), torch.randint(3000, (7,), generator=alone))
        if index in (119, 209):
            assert torch.equal(generator.get_state(), alone.get_state())
    assert asked == [(0, 50), (50, 100), (100, 120), (120, 170), (170, 210)]


def test_a_resumed_run_draws_on_from_its_checkpoint():
    def draw(first: int, last: int) -> Tensor:
        return torch.arange(first, last)

    assert RandomBatches(draw, 100, 20, "cpu").at(40) == 40


def test_the_curriculums_batches_are_those_of_each_length():
    task = Unique(UNIQUE.effective("curriculum", "smoke"), 4, torch.device("cpu"))
    alone = torch.Generator().manual_seed(5)
    for index in range(task.updates):
        x, count = sequences(16, task._length(index), 11, alone)
        assert torch.equal(task.batches.at(index), x)
        assert torch.equal(different(x, 11), count)
    assert torch.equal(task.generators["data"].get_state(), alone.get_state())


def trained(make, arm, changes, plain, updates, schedule=None, seed=3):
    """The weights, the losses and torch's generator after some updates, by graphs or not."""
    experiment = {Unique: UNIQUE, Digits: MNIST, Mixture: MIXTURE}[make]
    torch.manual_seed(seed)
    task = make(experiment.effective(arm, "smoke", {**changes, "evaluate_every": 5}), seed, CUDA)
    if plain:
        task.step = task._step
    if schedule is not None:
        task.scheduler = na.NoiseScheduler(task.model, schedule)
    torch.manual_seed(seed)
    losses = [line["loss"] for index in range(updates) if (line := task.update(index))]
    weights = {name: value.clone() for name, value in task.model.state_dict().items()}
    return weights, torch.tensor(losses), torch.cuda.get_rng_state()


@pytest.fixture
def tiny(own_data):
    made(own_data / "mnist")


CASES = [
    (Unique, "hard", {}), (Unique, "nan", {}), (Unique, "nah-annealed", {}), (Unique, "nan-annealed-curriculum", {}),
    (Digits, "hard", TINY), (Digits, "nah", TINY), (Mixture, "hard", {}), (Mixture, "nan", {}),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("make", "arm", "changes"), CASES, ids=lambda value: getattr(value, "__name__", str(value)[:20])
)
def test_a_graph_does_what_the_step_does(make, arm, changes, tiny):
    """With noise too, because a graph draws the same random numbers."""
    plain, graph = (trained(make, arm, changes, plain, 20) for plain in (True, False))
    assert torch.equal(plain[2], graph[2])
    torch.testing.assert_close(graph[1], plain[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(graph[0], plain[0], rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("arm", ["reference", "nan"])
def test_a_run_repeats_to_the_bit(arm):
    """At full size, where torch's own gradient of an embedding is not deterministic."""
    once, again = (trained(Unique, arm, {"batch": 128, "hidden": 64, "embedding": 32}, False, 40) for _ in range(2))
    assert torch.equal(once[1], again[1])
    assert all(map(torch.equal, once[0].values(), again[0].values()))


@pytest.mark.gpu
def test_a_scale_that_is_set_between_replays_has_its_effect():
    def falling(index: int) -> float:
        return 20.0 / (index + 1)

    plain, graph, constant = (
        trained(Unique, "nah-annealed", {}, plain, 20, schedule)
        for plain, schedule in ((True, falling), (False, falling), (False, None))
    )
    torch.testing.assert_close(graph[0], plain[0], rtol=1e-3, atol=1e-5)
    assert graph[0]["lstm.noise.scale"] == 1.0
    assert not torch.allclose(graph[1], constant[1], rtol=1e-3)

    layer = na.NoisyHardTanh("nan:alpha=1.0").cuda()
    x = torch.full((1000,), 3.0, device="cuda")
    step = captured(lambda x: layer(x).detach(), [x])
    for scale in (1.0, 1.0, 0.0, 5.0):
        layer.set_scale(scale)
        assert torch.equal(step(x), torch.ones_like(x)) == (scale == 0.0)


@pytest.mark.gpu
def test_every_replay_has_noise_and_inputs_of_its_own():
    layer = na.NoisyHardTanh("nah").cuda()
    step = captured(lambda x: (layer(x).detach(), x * 2), [torch.zeros(1, device="cuda")])
    seen = []
    for index in range(5):
        x = torch.full((500,), 3.0 + index, device="cuda")
        y, doubled = step(x)
        assert torch.equal(doubled, x * 2)
        seen.append(y - y.mean())
    for one in range(5):
        for other in range(one):
            assert abs(torch.corrcoef(torch.stack([seen[one], seen[other]]))[0, 1]) < 0.25


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_each_shape_has_one_graph_and_nothing_waits():
    torch.manual_seed(0)
    task = Unique(UNIQUE.effective("nan-annealed-curriculum", "smoke"), 0, CUDA)
    for index in range(40):
        task.update(index)
    assert len(task.step._graphs) == len({task._length(index) for index in range(40)})  # pyright: ignore
    try:
        torch.cuda.set_sync_debug_mode("error")
        for index in range(40, 59):  # new draws and all; the sixtieth is recorded
            task.update(index)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert task.update(59)["loss"] > 0


@pytest.mark.gpu
def test_an_optimisers_state_begins_with_the_first_update():
    """A state created during the recording would be created again by each replay."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1).cuda()
    optimizer = torch.optim.Adam(model.parameters(), 0.1, capturable=True)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x, graph = torch.ones(4, 3, device="cuda"), captured(step, [torch.ones(4, 3, device="cuda")])
    losses = [graph(x).item() for _ in range(50)]
    assert all(state["step"] == 50 for state in optimizer.state.values())
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.gpu
@pytest.mark.parametrize("arm", ["hard", "nan", "nan-annealed-curriculum"])
def test_resumed_ends_as_uninterrupted(arm, tmp_path):
    def stop(done, updates, line):
        if done in (20, 40):
            raise KeyboardInterrupt

    whole = run(Job("unique", arm, "smoke", 1, tmp_path / "whole", device="cuda"))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(Job("unique", arm, "smoke", 1, tmp_path / "parts", device="cuda"), progress=stop)
    parts = run(Job("unique", arm, "smoke", 1, tmp_path / "parts", device="cuda"))
    lines = [
        (folder_of(tmp_path / d, "unique", "smoke", arm, 1) / "metrics.jsonl").read_text() for d in ("whole", "parts")
    ]
    assert lines[0] == lines[1]
    assert parts["result"] == whole["result"]


@pytest.mark.gpu
def test_streams_on_a_gpu_end_as_single_runs(tmp_path):
    changes = {"updates": 200, "evaluate_every": 50}
    arms = ("hard", "nan", "nah-annealed", "nan-annealed-curriculum")
    jobs = [Job("unique", arm, "smoke", seed, tmp_path, "cuda", changes) for arm in arms for seed in (0, 1)]
    outcomes = streams.run_all(jobs, 4)
    for job, outcome in zip(jobs, outcomes, strict=True):
        assert outcome.record is not None, outcome.error
        alone = Job("unique", job.arm, "smoke", job.seed, tmp_path / "alone", "cuda", changes)
        assert run(alone)["result"] == outcome.record["result"]
        assert (alone.folder / "metrics.jsonl").read_text() == (job.folder / "metrics.jsonl").read_text()


@pytest.mark.gpu
def test_a_kernel_that_gave_up_is_no_divergence():
    pytest.importorskip("triton")
    from noisyact.ops.recurrent.gpu import launches

    check_kernels(CUDA)
    launches._alarm().fill_(1)
    with pytest.raises(RuntimeError, match="gave up waiting"):
        check_kernels(CUDA)
    check_kernels(CUDA)


@pytest.mark.gpu
def test_a_recorded_step_draws_a_block_of_seeds_at_each_replay():
    function, x = na.NoisyHardTanh("nah:c=2.0").cuda(), torch.full((1000,), 3.0, device="cuda")

    def step(x):
        with na.deferred_gradients(), na.seeds_in_blocks():
            return torch.stack([function(x), function(x)])

    found = []
    for recorded in (True, False):
        torch.manual_seed(2)
        run = captured(step, [x]) if recorded else step
        found.append([run(x).clone() for _ in range(4)])
    each = torch.cat(found[0])
    assert len(each.unique(dim=0)) == 8
    assert torch.equal(each, torch.cat(found[1]))

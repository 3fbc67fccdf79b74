"""Mixture of Gaussians: every arm runs, the same seed gives identical bytes, and only saturated units have noise."""

import pytest
import torch

from noisyact_lab.engine.experiment import UnknownName, load_experiment
from noisyact_lab.engine.folder import checkpoint, picture
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.mixture.mixture import DEVIATIONS, MEANS, MIXTURE, Mixture, Settings, points

ARMS = [arm.name for arm in MIXTURE.arms]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All arms at preset smoke."""
    out = tmp_path_factory.mktemp("runs")
    return out, {arm: run(Job("mixture", arm, "smoke", 0, out, device="cpu")) for arm in ARMS}


@pytest.fixture(scope="module")
def noisy():
    """A NAN network trained for a while."""
    torch.manual_seed(0)
    settings = MIXTURE.effective("nan", "smoke", {"updates": 400, "learning_rate": 0.02})
    task = Mixture(settings, 0, torch.device("cpu"))
    for index in range(task.updates):
        task.update(index)
    return task


def test_is_registered():
    assert load_experiment("mixture") is MIXTURE


def test_points_are_of_the_three_distributions():
    x, label = points(30_000, torch.Generator().manual_seed(0))
    for k, (mean, deviation) in enumerate(zip(MEANS, DEVIATIONS, strict=True)):
        own = x[label == k]
        assert abs(len(own) / len(x) - 1 / 3) < 0.01
        assert torch.allclose(own.mean(dim=0), torch.tensor(mean), atol=0.03)
        assert torch.allclose(own.std(dim=0), torch.tensor([deviation] * 2), atol=0.02)


def test_the_best_classifier_is_as_good_as_the_file_says():
    x, label = points(200_000, torch.Generator().manual_seed(0))
    deviations = torch.tensor(DEVIATIONS)
    square = (x[:, None] - torch.tensor(MEANS)).square().sum(dim=2)
    best = (-square / (2 * deviations**2) - 2 * deviations.log()).argmax(dim=1)
    assert 0.9985 < (best == label).double().mean() < 0.9995


def test_every_arm_finishes(runs):
    for arm, record in runs[1].items():
        assert record["status"] == "finished", arm
        assert set(record["result"]) == {"train_accuracy", "train_nll", "test_accuracy", "test_nll"}
        assert record["result"]["test_accuracy"] > 40
        assert MIXTURE.metric in record["result"]


def test_same_seed_same_bytes_another_seed_others(runs, tmp_path):
    for arm in ("nan", "nah"):
        for seed in (0, 1):
            run(Job("mixture", arm, "smoke", seed, tmp_path, device="cpu"))
        first, again, other = (
            (folder_of(out, "mixture", "smoke", arm, seed) / "metrics.jsonl").read_bytes()
            for out, seed in ((runs[0], 0), (tmp_path, 0), (tmp_path, 1))
        )
        assert first == again
        assert first != other


@pytest.mark.parametrize("arm", ["tanh", "nan", "nah"])
def test_short_solves_it(arm, tmp_path):
    result = run(Job("mixture", arm, "short", 0, tmp_path, device="cpu"))["result"]
    assert result["test_accuracy"] > 99
    assert result["test_nll"] < 0.03


def test_leak_alone_is_the_noisy_arm_without_noise():
    leak, noisy = (MIXTURE.effective(arm, "paper") for arm in ("leak", "nan-leak"))
    assert (leak.c, noisy.c) == (0.0, 0.5)
    assert leak.alpha == noisy.alpha == 1.15
    assert MIXTURE.effective("nan", "paper").alpha == MIXTURE.effective("nah", "paper").alpha == 1.0


def test_units_are_noisy_where_they_saturate(noisy):
    x = noisy.test[0]
    layers = noisy.model.units(x, seed=3)
    assert [units.x.shape for units in layers] == [(len(x), 8)] * 3
    for units in layers:
        inside = units.x.abs() < 1
        assert torch.equal(units.phi[inside], units.x[inside])
        assert (units.dphi[inside] == 1).all()
        beyond = units.x.abs() > 1.1
        assert beyond.any()
        assert (units.phi[beyond].abs() != 1).double().mean() > 0.5
        assert units.dphi[beyond].abs().max() < 0.5
    assert torch.equal(noisy.model.units(x, seed=3)[2].phi, layers[2].phi)
    assert not torch.equal(noisy.model.units(x, seed=4)[0].phi, layers[0].phi)


def test_units_of_tanh():
    task = Mixture(MIXTURE.effective("tanh", "smoke"), 0, torch.device("cpu"))
    for units in task.model.units(task.test[0], seed=0):
        assert torch.equal(units.phi, torch.tanh(units.x))
        assert torch.allclose(units.dphi, 1 - units.phi**2)


def test_figure_shows_every_unit_of_every_layer(noisy):
    figure = noisy.pictures()["units"]
    assert [len(ax.lines) for ax in figure.axes] == [8] * 6
    layers = noisy.model.units(noisy.test[0][:300], seed=7)
    for ax, (units, shown) in zip(
        figure.axes, [(units, shown) for shown in ("phi", "dphi") for units in layers], strict=True
    ):
        for unit, line in enumerate(ax.lines):
            assert line.get_xdata().tolist() == units.x[:, unit].tolist()
            assert line.get_ydata().tolist() == getattr(units, shown)[:, unit].tolist()


def test_a_finished_run_keeps_its_figure(runs, tmp_path):
    task = Mixture(MIXTURE.effective("nah", "smoke"), 0, torch.device("cpu"))
    found = checkpoint.paths(folder_of(runs[0], "mixture", "smoke", "nah", 0) / "checkpoints")
    assert found[-1].name == f"{task.updates:09d}"
    checkpoint.restore(task, checkpoint.read(found[-1]))
    assert task.evaluate(task.updates) == runs[1]["nah"]["result"]
    figure = task.pictures()["units"]
    assert figure.axes[0].get_title() == r"NAH ($\alpha = 1$, $c = 0.5$), layer 1"
    kept = folder_of(runs[0], "mixture", "smoke", "nah", 0) / "pictures" / "units.svg"
    assert picture.save(figure, tmp_path, "units")[0].with_suffix(".svg").read_bytes() == kept.read_bytes()


def test_bad_settings_are_named():
    with pytest.raises(UnknownName, match=r"'relu' is unknown; allowed are tanh, hard, nan, nah"):
        Mixture(Settings(activation="relu"), 0, torch.device("cpu"))
    with pytest.raises(ValueError, match="units=0: must be at least 1"):
        MIXTURE.effective("nan", "smoke", {"units": 0})

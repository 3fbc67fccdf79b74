"""The MNIST experiment: on digits made here, and on the real ones where they are there."""

import pytest
import torch
from mnist_cases import made, write_idx
from run_cases import stopped_ends_as_whole
from tiny import MNIST as TINY

from noisyact_lab.data import locate, verify
from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.engine.folder.files import read_lines
from noisyact_lab.engine.job import Job
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.mnist import MNIST, Digits, Network, Settings, images_and_labels

ARMS = [arm.name for arm in MNIST.arms]


@pytest.fixture
def tiny(own_data):
    return made(own_data / "mnist")


def test_is_registered_with_every_arm():
    assert load_experiment("mnist") is MNIST
    assert ARMS == ["tanh", "hard", "leak", "nan", "nah", "nani", "nanil", "nanis"]
    leak, nan = (MNIST.effective(arm, "paper") for arm in ("leak", "nan"))
    assert (leak.c, leak.alpha) == (0.0, nan.alpha)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_learns(arm, tiny, tmp_path):
    record = run(Job("mnist", arm, "smoke", 0, tmp_path / "out", device="cpu", changes={**TINY, "updates": 150}))
    result = record["result"]
    assert record["status"] == "finished"
    assert result["test_error"] < 20  # of ten classes
    assert result["valid_nll"] < 1.5
    assert result["updates_to_train_nll_0.05"] is None


def test_weights_of_a_seed_are_the_same_in_every_arm():
    made = []
    for arm in ARMS:
        torch.manual_seed(7)
        made.append(Network(25, MNIST.effective(arm, "smoke")))
    for network in made[1:]:
        assert torch.equal(network.hidden.weight, made[0].hidden.weight)
        assert torch.equal(network.output.weight, made[0].output.weight)


def test_an_epoch_sees_every_image_once(tiny):
    task = Digits(MNIST.effective("tanh", "smoke", TINY), 3, torch.device("cpu"))
    epochs = [torch.cat([task.batches.at(25 * epoch + i) for i in range(25)]) for epoch in (0, 1, 0)]
    assert sorted(epochs[0].tolist()) == list(range(400))
    assert not torch.equal(epochs[0], epochs[1])
    assert torch.equal(epochs[0], epochs[2])


@pytest.mark.parametrize("arm", ["tanh", "nah"])
def test_stopped_and_resumed_ends_the_same(arm, tiny, tmp_path):
    """Within the first epoch of 25 updates, and within the second."""
    whole = stopped_ends_as_whole(MNIST, arm, tmp_path, TINY)
    assert [line["update"] for line in read_lines(whole / "metrics.jsonl")] == [20, 40, 60]


def test_tests_with_the_best_weights(tiny):
    task = Digits(MNIST.effective("hard", "smoke", TINY), 0, torch.device("cpu"))
    for index in range(40):
        task.update(index)
    good = {"update": 40, **task.evaluate(40)}
    with torch.no_grad():
        task.model.output.weight.neg_()
    bad = {"update": 41, **task.evaluate(41)}
    assert bad["valid_nll"] > good["valid_nll"]
    result = task.result([good, bad])
    assert result["best_update"] == 40
    assert result["test_error"] < 60  # the negated weights are wrong about nearly all


def test_bad_settings_and_data_are_named(tiny, tmp_path):
    cpu = torch.device("cpu")
    with pytest.raises(ValueError, match="activation 'relu' is unknown; allowed are tanh, hard, nan"):
        Network(25, Settings(activation="relu"))
    with pytest.raises(
        ValueError, match="validation=490, batch=16: both must be at least 1 and together at most the 500"
    ):
        Digits(MNIST.effective("tanh", "smoke", {**TINY, "validation": 490}), 0, cpu)
    with pytest.raises(ValueError, match=r"'mnist' is not what it should be: .*bytes, not 1,648,877"):
        Digits(MNIST.effective("tanh", "smoke"), 0, cpu)
    write_idx(tiny / "t10k-labels-idx1-ubyte.gz", torch.tensor([3, 11]))
    with pytest.raises(ValueError, match=r"60 images, but .* has 2 labels"):
        images_and_labels("t10k", verified=False)
    write_idx(tiny / "train-labels-idx1-ubyte.gz", torch.full((500,), 11))
    with pytest.raises(ValueError, match="a label 11; allowed are 0 to 9"):
        images_and_labels("train", verified=False)
    (tiny / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(locate.Missing, match=r"train-images-idx3-ubyte\.gz.*noisyact data fetch mnist"):
        run(Job("mnist", "tanh", "smoke", 0, tmp_path / "out", changes={"verified": False}))


def test_real_counts(real_mnist):
    assert verify.verify("mnist") == []
    for part, count, first in (("train", 60_000, [5, 0, 4, 1, 9]), ("t10k", 10_000, [7, 2, 1, 0, 4])):
        images, labels = images_and_labels(part)
        assert images.shape == (count, 784)
        assert images.dtype == torch.uint8
        assert len(labels) == count
        assert labels[:5].tolist() == first
    train_images, _ = images_and_labels("train")
    assert round(train_images.float().mean().item() / 255, 4) == 0.1307


def test_real_smoke(real_mnist, tmp_path):
    record = run(Job("mnist", "nan", "smoke", 0, tmp_path, device="cpu"))
    assert record["status"] == "finished"
    assert record["result"]["test_error"] < 25

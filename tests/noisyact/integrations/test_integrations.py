"""The trainers' callbacks, with the trainers themselves: the noise of every step, logs, resuming, and what breaks."""

import csv
import math
import subprocess
import sys

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from noisyact import NoiseScheduler, NoisyHardSigmoid, NoisyHardTanh, anneal
from noisyact.integrations.lightning import NoiseAnnealing
from noisyact.integrations.transformers import NoiseAnnealingCallback

SCHEDULE = anneal.inverse_sqrt(3.0, 0.9, every=2)
CALLBACKS = [NoiseAnnealing, NoiseAnnealingCallback]


class Fuse(nn.Module):
    """Lets everything pass until, at one of its calls, nothing is finite any more."""

    def __init__(self, blows_at: float) -> None:
        super().__init__()
        self.calls, self.blows_at = 0, blows_at

    def forward(self, x):
        self.calls += self.training
        return x * math.inf if self.training and self.calls > self.blows_at else x


class Net(nn.Module):
    """Notes, in training, the noise scales that it runs under."""

    def __init__(self, blows_at: float = math.inf) -> None:
        super().__init__()
        self.first, self.act, self.fuse = nn.Linear(2, 4), NoisyHardTanh(), Fuse(blows_at)
        self.gate = NoisyHardSigmoid()
        self.last = nn.Linear(4, 1)
        self.seen: list[tuple[float, float]] = []

    def forward(self, x, labels=None):
        if self.training:
            self.seen.append((self.act.scale.item(), self.gate.scale.item()))
        out = self.last(self.gate(self.fuse(self.act(self.first(x)))))
        return {"loss": (out - labels).square().mean(), "logits": out}


class Lit(LightningModule):
    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch, index):
        return self.net(**batch)["loss"]

    def validation_step(self, batch, index):
        self.net(**batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def examples(count: int = 64) -> list[dict[str, torch.Tensor]]:
    return [{"x": torch.randn(2), "labels": torch.randn(1)} for _ in range(count)]


def in_a_plain_loop(steps: int, accumulate: int = 1) -> list[tuple[float, float]]:
    net, data = Net(), torch.utils.data.DataLoader(examples(steps * accumulate * 2), batch_size=2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scheduler = NoiseScheduler(net, SCHEDULE)
    for number, batch in enumerate(data, start=1):
        net(**batch)["loss"].backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    return net.seen


def fit(net: Net, callback: NoiseAnnealing, steps: int, *, resume=None, save=None, logger=False, **options) -> None:
    trainer = LightningTrainer(
        max_steps=steps, callbacks=[callback], accelerator="cpu", logger=logger, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1, **options,
    )  # fmt: skip
    trainer.fit(Lit(net), torch.utils.data.DataLoader(examples(), batch_size=2), ckpt_path=resume)
    if save:
        trainer.save_checkpoint(save)


def hf_trainer(folder, net: Net, *callbacks: TrainerCallback, steps: int = 6, **options) -> Trainer:
    arguments = TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=2, report_to=[], disable_tqdm=True, use_cpu=True,
        **{"logging_steps": 1, "save_strategy": "no", "dataloader_pin_memory": False} | options,
    )  # fmt: skip
    data = examples()
    return Trainer(net, arguments, train_dataset=data, eval_dataset=data[:8], callbacks=list(callbacks))


def run_either(callback, folder, net: Net, steps: int) -> None:
    if isinstance(callback, NoiseAnnealing):
        fit(net, callback, steps)
    else:
        hf_trainer(folder, net, callback, steps=steps).train()


def hooks(net: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules())


lightning_talks = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers:lightning.fabric.utilities.warnings.PossibleUserWarning",
    "ignore:.*treespec, LeafSpec:FutureWarning",
    "ignore:.*defined a `validation_step` but have no `val_dataloader`",
)


@lightning_talks
@pytest.mark.parametrize("accumulate", [1, 4])
def test_lightning_runs_under_the_noise_of_a_plain_loop(accumulate):
    net = Net()
    fit(net, NoiseAnnealing(SCHEDULE), 7, accumulate_grad_batches=accumulate)
    assert net.seen == in_a_plain_loop(7, accumulate)
    assert len({scale for scale, _ in net.seen}) == 4
    assert hooks(net) == 0


@pytest.mark.parametrize("accumulate", [1, 4])
def test_transformers_runs_under_the_noise_of_a_plain_loop(tmp_path, accumulate):
    net = Net()
    callback = NoiseAnnealingCallback(SCHEDULE)
    hf_trainer(tmp_path, net, callback, steps=7, gradient_accumulation_steps=accumulate).train()
    assert net.seen == in_a_plain_loop(7, accumulate)
    assert hooks(net) == 0


@lightning_talks
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_lightning_resumes_where_it_stopped(tmp_path):
    first, second = Net(), Net()
    fit(first, NoiseAnnealing(SCHEDULE), 3, save=tmp_path / "three.ckpt")
    fit(second, NoiseAnnealing(SCHEDULE), 7, resume=tmp_path / "three.ckpt")
    assert len(second.seen) == 4
    assert first.seen + second.seen == in_a_plain_loop(7)


def test_transformers_resumes_where_it_stopped(tmp_path):
    first, second = Net(), Net()
    hf_trainer(tmp_path, first, NoiseAnnealingCallback(SCHEDULE), steps=3, save_strategy="steps", save_steps=3).train()
    resumed = hf_trainer(tmp_path, second, NoiseAnnealingCallback(SCHEDULE), steps=7)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert first.seen + second.seen == in_a_plain_loop(7)


@lightning_talks
def test_lightning_logs(tmp_path):
    net = Net()
    with torch.no_grad():
        net.first.weight.zero_()
        net.first.bias.fill_(5.0)  # every hidden unit is saturated, no gate is
    data = torch.utils.data.DataLoader(examples(8), batch_size=2)
    trainer = LightningTrainer(
        max_steps=4, callbacks=[NoiseAnnealing(SCHEDULE, log_every=2)], accelerator="cpu",
        logger=CSVLogger(tmp_path, flush_logs_every_n_steps=1), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, log_every_n_steps=1, val_check_interval=1,
    )  # fmt: skip
    trainer.fit(Lit(net), data, data)
    assert trainer.logged_metrics["saturation/net.act"] == 1.0
    with next(tmp_path.glob("**/metrics.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["noise/scale"]) for row in rows] == pytest.approx([SCHEDULE(step) for step in range(4)])
    assert [row["saturation/net.act"] for row in rows][::2] == ["1.0", "1.0"]
    assert [row["saturation/net.gate"] for row in rows][::2] == ["0.0", "0.0"]


def test_transformers_logs_and_evaluates_before_during_and_after(tmp_path):
    class Reporter(TrainerCallback):
        def __init__(self):
            self.logs = []

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.logs.append(dict(logs))

    net, reporter, callback = Net(), Reporter(), NoiseAnnealingCallback(SCHEDULE, log_every=2)
    trainer = hf_trainer(tmp_path, net, reporter, steps=4, eval_strategy="steps", eval_steps=1)
    trainer.callback_handler.callbacks.insert(0, callback)  # as the docstring says, for reporters to see it
    trainer.evaluate()
    trainer.train()
    trainer.evaluate()
    for logs in (trainer.state.log_history, reporter.logs):
        training = [entry for entry in logs if "loss" in entry]
        assert [entry["noise/scale"] for entry in training] == [SCHEDULE(step) for step in range(4)]
        assert ["saturation/act" in entry for entry in training] == [True, False, True, False]
        assert all(0 <= entry["saturation/gate"] <= 1 for entry in training[::2])
        evaluation = [entry for entry in logs if "eval_loss" in entry]
        assert not any("saturation/act" in entry for entry in evaluation)
        assert len(evaluation) == len(logs) - 5
    assert "noise/scale" not in reporter.logs[0]
    assert "noise/scale" not in reporter.logs[-1]


@lightning_talks
@pytest.mark.parametrize("make", CALLBACKS)
@pytest.mark.parametrize("log_every", [1, 50])  # 50: it breaks after the last look, and the end of training tells
def test_raise_names_module_and_step(tmp_path, make, log_every):
    net = Net(blows_at=3)
    with pytest.raises(FloatingPointError, match=rf"activation of (net\.)?fuse .* step 3 .*scale {SCHEDULE(3):g}"):
        run_either(make(SCHEDULE, log_every=log_every, on_nonfinite="raise"), tmp_path, net, 6)
    assert len(net.seen) == (4 if log_every == 1 else 6)
    assert hooks(net) == 0


@lightning_talks
@pytest.mark.parametrize("make", CALLBACKS)
@pytest.mark.parametrize("log_every", [1, 50])
def test_warn_warns_once_and_goes_on(tmp_path, make, log_every):
    net = Net(blows_at=3)
    with pytest.warns(RuntimeWarning, match=r"fuse stopped being finite at step 3") as caught:
        run_either(make(SCHEDULE, log_every=log_every, on_nonfinite="warn"), tmp_path, net, 6)
    assert sum("stopped being finite" in str(warning.message) for warning in caught) == 1
    assert len(net.seen) == 6
    assert hooks(net) == 0


@lightning_talks
@pytest.mark.parametrize("make", CALLBACKS)
def test_ignore_does_not_look_and_a_callback_serves_twice(tmp_path, make):
    callback = make(SCHEDULE, log_every=1, on_nonfinite="ignore")
    for net in (Net(blows_at=1), Net()):
        run_either(callback, tmp_path, net, 3)  # a warning would be an error here
        assert [scale for scale, _ in net.seen] == [scale for scale, _ in in_a_plain_loop(3)]


@lightning_talks
@pytest.mark.parametrize("make", CALLBACKS)
def test_one_kind_of_scale_is_set(tmp_path, make):
    net = Net()
    net.gate = NoisyHardSigmoid("slope:slope=2")
    run_either(make(SCHEDULE, only="slope"), tmp_path, net, 3)
    assert net.seen == [(0.5, scale) for scale, _ in in_a_plain_loop(3)]
    with pytest.raises(ValueError, match="only='tau'"):
        run_either(make(SCHEDULE, only="tau"), tmp_path, net, 1)


@lightning_talks
@pytest.mark.parametrize("make", CALLBACKS)
def test_a_model_without_noise_is_refused(tmp_path, make):
    net = Net()
    net.act, net.gate = nn.Tanh(), nn.Sigmoid()
    with pytest.raises(ValueError, match="no noisy part"):
        run_either(make(SCHEDULE), tmp_path, net, 2)


@pytest.mark.parametrize("make", CALLBACKS)
@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"schedule": 0.5}, TypeError, r"0\.5"),
        ({"log_every": 0}, ValueError, "log_every=0"),
        ({"log_every": 2.0}, ValueError, r"log_every=2\.0"),
        ({"log_every": True}, ValueError, "log_every=True"),
        ({"on_nonfinite": "crash"}, ValueError, "on_nonfinite='crash'"),
        ({"on_nonfinite": None}, ValueError, "on_nonfinite=None"),
    ],
)
def test_wrong_arguments_are_named(make, arguments, error, named):
    with pytest.raises(error, match=named):
        make(**{"schedule": SCHEDULE} | arguments)


def test_noisyact_itself_brings_in_no_trainer():
    code = "import sys, noisyact; print([name for name in ('lightning', 'transformers') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"

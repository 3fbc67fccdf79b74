"""Translation with Adam: the schedule, updates in bfloat16, and resuming."""

import pytest
import torch
from parallel_cases import packed_backwards  # noqa: F401
from run_cases import stopped_ends_as_whole

from noisyact.deferral import deferred_gradients
from noisyact.noise import seeds_in_blocks
from noisyact_lab.experiments.translate import task as task_module
from noisyact_lab.experiments.translate.adam import TRANSLATE_ADAM, TRANSLATE_MULTI30K, TranslateWithAdam
from noisyact_lab.experiments.translate.translate import TRANSLATE

pytest.importorskip("sacrebleu")
TINY = {
    "words": 20, "word_size": 12, "hidden": 16, "batch": 64, "epochs": 1.5, "evaluations": 3, "warmup": 2,
    "longest_translation": 6,
}  # fmt: skip


def task_of(arm="nah", **changes):
    torch.manual_seed(0)
    return TranslateWithAdam(TRANSLATE_ADAM.effective(arm, "smoke", {**TINY, **changes}), 0, torch.device("cpu"))


def test_the_paper_preset_is_the_papers_model():
    adam, paper = TRANSLATE_ADAM.effective("nah", "paper"), TRANSLATE.effective("nah", "paper")
    same = ("corpus", "shards", "words", "longest", "word_size", "hidden", "orthogonal_scale", "max_gradient_norm",
            "beam", "c", "alpha", "gate_c", "gate_alpha")  # fmt: skip
    assert {name: getattr(adam, name) for name in same} == {name: getattr(paper, name) for name in same}
    assert {arm.name for arm in TRANSLATE_ADAM.arms} == {"reference", "hard", "leak", "nah", "nah-mean"}
    assert {arm.name for arm in TRANSLATE_MULTI30K.arms} >= {arm.name for arm in TRANSLATE.arms}


def test_epochs_are_the_budget_and_the_rate_falls_to_nothing(packed_alone):
    task = task_of()
    assert (task.updates, task.evaluate_every) == (9, 3)  # of 400 pairs, 6 batches of 64 an epoch
    rates = []
    for index in range(9):
        task.update(index)
        rates.append(float(task.optimizer.param_groups[0]["lr"]) / task.settings.learning_rate)
    assert rates == pytest.approx([1 / 3, 2 / 3, 1, 6 / 7, 5 / 7, 4 / 7, 3 / 7, 2 / 7, 1 / 7])
    for changes, message in (
        ({"warmup": 9}, "warmup=9: must be 0 or more and less than the 9 updates"),
        ({"epochs": 0.3}, "translate-adam: epochs=0.3: 2 updates are fewer than the 3 evaluations"),
        ({"evaluations": 0}, "evaluations=0: must be at least 1"),
        ({"batch": 401}, "batch=401: there are 400 pairs"),
    ):
        with pytest.raises(ValueError, match=message):
            task_of(**changes)


@pytest.mark.parametrize("arm", ["reference", "nah"])
def test_an_update_in_bfloat16_is_close_to_that_in_float32(arm, packed_alone):
    """The weights and the optimiser's state stay float32, and the gradients are those of float32 but for rounding."""
    grown = {}
    for short in (False, True):
        task = task_of(arm, bfloat16=short, hidden=32)
        torch.manual_seed(3)
        task.update(0)
        grown[short] = torch.cat([p.grad.flatten() for p in task.model.parameters() if p.grad is not None])
        assert {parameter.dtype for parameter in task.model.parameters()} == {torch.float32}
        assert {state["exp_avg"].dtype for state in task.optimizer.state.values()} == {torch.float32}
        assert next(task.trained.parameters()).dtype == (torch.bfloat16 if short else torch.float32)
        kept = {module.weight.dtype for module in (task.trained.attention.energy, task.model.attention.energy)}
        assert kept == {torch.float32}  # as the kernels of the scores on a GPU are
    assert grown[True].dtype == torch.float32
    assert not torch.equal(*grown.values())
    assert torch.nn.functional.cosine_similarity(*grown.values(), dim=0) > 0.999
    assert float(grown[True].norm()) == pytest.approx(float(grown[False].norm()), rel=0.02)


def test_deferred_gradients_in_bfloat16_are_those_of_autograd(packed_alone, monkeypatch):
    """A GPU defers them; without a GPU the same context managers are entered here."""
    grown = {}
    for on in (False, True):
        monkeypatch.setattr(task_module, "deferred_gradients", lambda _, on=on: deferred_gradients(on))
        monkeypatch.setattr(task_module, "seeds_in_blocks", lambda _, on=on: seeds_in_blocks(on))
        task = task_of(hidden=32)
        torch.manual_seed(3)
        task.update(0)
        grown[on] = torch.cat([p.grad.flatten() for p in task.model.parameters() if p.grad is not None])
    assert not torch.equal(*grown.values())  # summed in another order
    assert torch.nn.functional.cosine_similarity(*grown.values(), dim=0) > 0.999
    assert float(grown[True].norm()) == pytest.approx(float(grown[False].norm()), rel=0.01)


def test_learns_in_bfloat16(packed_alone):
    task = task_of(epochs=10, evaluations=2, hidden=24, word_size=24, learning_rate=0.02, orthogonal_scale=1.0)
    losses = []
    for index in range(task.updates):
        task.update(index)
        losses.append(float(task.loss_sum))
        task.loss_sum.zero_()
    assert sum(losses[:5]) / 5 > 6  # 7.3 by chance
    assert sum(losses[-5:]) / 5 < 5  # 5.9 without a look at the source


@pytest.mark.parametrize("experiment", [TRANSLATE_ADAM, TRANSLATE_MULTI30K], ids=lambda experiment: experiment.name)
def test_stopped_and_resumed_ends_the_same(experiment, packed_alone, tmp_path):
    stopped_ends_as_whole(experiment, "nah", tmp_path, {**TINY, "bfloat16": experiment is TRANSLATE_ADAM})


def test_bfloat16_is_not_spread(packed_alone):
    class Pair:
        size = 2

    with pytest.raises(ValueError, match="bfloat16=true: a run over several devices needs --set bfloat16=false"):
        task_of().spread(Pair())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:RNN module weights are not part")  # torch does not flatten weights in bfloat16
@pytest.mark.parametrize("arm", ["reference", "nah"])
def test_graphs_do_what_the_steps_do_in_bfloat16(arm, packed_alone):
    found = []
    for as_graphs in (True, False):
        torch.manual_seed(3)
        settings = TRANSLATE_ADAM.effective(arm, "smoke", {**TINY, "epochs": 3, "tf32": False})
        task = TranslateWithAdam(settings, 0, torch.device("cuda"))
        if not as_graphs:
            task.step = task._step
        for index in range(task.updates):
            task.update(index)
        found.append([weight.detach().cpu() for weight in task.model.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)

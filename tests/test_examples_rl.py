"""The examples of reinforcement learning, from end to end at a small size."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import noisyact as na

pytest.importorskip("gymnasium", reason="needs the extra rl: gymnasium is not installed")
pytest.importorskip("popgym", reason="needs the extra rl: popgym is not installed")
pytest.importorskip("sb3_contrib", reason="needs the extra rl: sb3-contrib is not installed")
EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = {"steps": 256, "environments": 4, "rollout": 64, "units": 8, "epochs": 1, "minibatches": 2}


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for it
    spec.loader.exec_module(module)
    return module


ppo, curves, sb3 = load("memory_ppo"), load("memory_ppo_curves"), load("sb3_recurrent_ppo")


@pytest.fixture(autouse=True)
def few_evaluations(monkeypatch):
    monkeypatch.setattr(ppo, "EVALUATION_STEPS", 60)  # an episode of RepeatPreviousEasy has 51 steps


def main(module, *arguments):
    """Run an example's command line and return the message of its exit, None if it ended well."""
    threads = torch.get_num_threads()
    try:
        module.main([*map(str, arguments)])
    except SystemExit as end:
        return end.code
    finally:
        torch.set_num_threads(threads)


def small(folder, *more):
    return main(ppo, "--smoke", "--out", folder, *more)


def agent_and_rollout(layer, **changes):
    torch.manual_seed(0)
    settings = ppo.Settings(layer=layer, noise="nanis:sigma=0.5", **(SMALL | changes))
    environments = ppo.Environments(settings)
    agent = ppo.Agent(environments.values, environments.actions, settings)
    with torch.no_grad():
        agent.actor.weight.mul_(100)  # noise must matter to the policy
        agent.encoder[0].weight.mul_(8)
    rollout, _ = ppo.collect(agent, environments, agent.first_state(settings.environments), settings.rollout)
    return agent, rollout


@pytest.mark.parametrize("layer", ["noisy-lstm", "noisy-gru"])
def test_the_ratio_is_1_before_the_first_update_with_replayed_noise(layer):
    agent, rollout = agent_and_rollout(layer)
    assert rollout.resets[1:].any()
    for rows in (torch.tensor([2, 0]), torch.tensor([3]), torch.arange(4)):
        assert ppo.log_ratio(agent, rollout, rows, replay=True)[0].abs().max() < 1e-5
        assert ppo.log_ratio(agent, rollout, rows, replay=False)[0].abs().max() > 1e-2
    agent.encoder[0].bias.data += 0.1
    assert ppo.log_ratio(agent, rollout, torch.arange(4), replay=True)[0].abs().max() > 1e-2


@pytest.mark.parametrize("layer", ["lstm", "gru"])
def test_stepped_in_python_is_the_same_policy(layer):
    """The rollouts have the same observations, actions and resets, and the updated weights agree."""
    results = []
    for stepped in (False, True):
        agent, rollout = agent_and_rollout(layer, stepped=stepped)
        optimiser = torch.optim.SGD(agent.parameters(), lr=0.1)
        ppo.update(agent, optimiser, rollout, ppo.Settings(layer=layer, stepped=stepped, **SMALL))
        results.append((rollout, agent.state_dict()))
    (ours, weights), (theirs, their_weights) = results
    assert type(agent.memory) in (nn.LSTM, nn.GRU)
    for field in ("observations", "actions", "resets", "rewards", "ends"):
        assert torch.equal(getattr(ours, field), getattr(theirs, field)), field
    torch.testing.assert_close(ours.log_probs, theirs.log_probs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weights, their_weights, atol=1e-5, rtol=1e-4)


def test_advantages_are_sums_of_temporal_differences_within_an_episode():
    one, none = torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.bool)
    ends = torch.tensor([[False], [True], [False]])
    rollout = ppo.Rollout(one, none, one, one, 2 * one, one, ends, torch.tensor([4.0]), None, 0)
    # differences: 1 + 2/2 - 2 = 0; 1 - 2 = -1, an end; 1 + 4/2 - 2 = 1
    assert ppo.advantages_of(rollout, 0.5, 0.5).flatten().tolist() == [-0.25, -1.0, 1.0]


def test_records_are_written_whole_and_drawn_and_finished_runs_are_not_repeated(tmp_path, capsys, monkeypatch):
    assert small(tmp_path, "--seeds", 1, 2, "--layer", "noisy-gru", "--anneal") is None
    assert small(tmp_path, "--layer", "gru", "--stepped") is None
    paths = sorted(path.name for path in tmp_path.iterdir())
    assert paths == [
        "RepeatPreviousEasy-gru-stepped-seed-1.json",
        "RepeatPreviousEasy-noisy-gru-anneal-seed-1.json",
        "RepeatPreviousEasy-noisy-gru-anneal-seed-2.json",
    ]
    record = json.loads((tmp_path / paths[1]).read_text())
    assert record["settings"]["layer"] == "noisy-gru"
    assert record["curve"]["steps"] == [256, 512]
    assert record["log_ratio_before_update"]["first"] < 1e-5
    assert {"commit", "torch", "noisyact"} <= record["signature"].keys()
    assert main(curves, tmp_path, tmp_path / "curves.png") is None
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert "noisy-gru-anneal  2" in capsys.readouterr().out

    def interrupted(settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(ppo, "train", interrupted)
    assert small(tmp_path, "--seeds", 1, 2, "--layer", "noisy-gru", "--anneal") is None
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path, "--seeds", 3, "--layer", "noisy-gru", "--anneal")
    assert len(list(tmp_path.glob("*.json"))) == 3
    assert "is of other settings" in small(tmp_path, "--layer", "noisy-gru", "--anneal", "--clip", 0.1)
    (tmp_path / paths[1]).write_text(json.dumps(record | {"settings": record["settings"] | {"clip": 0.1}}))
    assert "has other settings than" in main(curves, tmp_path, tmp_path / "curves.png")


def test_a_ratio_other_than_1_stops_the_run(monkeypatch):
    monkeypatch.setattr(ppo, "update", lambda *_: 0.1)
    with pytest.raises(RuntimeError, match=r"\|log ratio\| is up to 0\.1"):
        ppo.train(ppo.Settings(**SMALL))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layer": "rnn"}, "layer='rnn': must be one of lstm, gru, noisy-lstm, noisy-gru"),
        ({"environment": "Chess"}, "environment='Chess': must be one of Auto"),
        ({"stepped": True}, "torch has no noisy-lstm"),
        ({"layer": "gru", "anneal": True}, "the layer gru has no noise"),
        ({"units": 0}, "units=0: must be at least 1"),
        ({"minibatches": 3}, "minibatches=3: must divide the number of environments, 4"),
        ({"steps": 255}, "steps=255: must be at least one rollout"),
        ({"noise": "loud"}, "loud"),
    ],
)
def test_wrong_settings_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ppo.Settings(**SMALL), **wrong)


def test_wrong_arguments_end_in_one_sentence(tmp_path):
    assert "minibatches=3" in main(ppo, "--out", tmp_path, "--minibatches", 3)
    assert "its actions are" in small(tmp_path, "--environment", "PositionOnlyPendulumEasy")
    assert "has no records" in main(curves, tmp_path, tmp_path / "curves.png")
    assert "--units 0: must be at least 1" in main(sb3, "--units", 0)
    assert "Chess" in main(sb3, "--environment", "Chess-v0")
    assert not list(tmp_path.iterdir())


def test_recurrent_ppo_of_sb3_contrib_learns_with_converted_policies(capsys):
    assert main(sb3, "--smoke", "--noise", "nani") is None
    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in out.rsplit("policy  ", 1)[1].splitlines()[1:]}
    assert rows.keys() == set(sb3.POLICIES)
    assert [float(rows[name][-1]) > 0 for name in sb3.POLICIES] == [False, False, False, True]
    assert "NoisyHardTanh" in out


def test_resets_inside_one_call_are_sb3_contribs_loop():
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 5)
    layer = na.NoisyLSTM(3, 5, hard=False, noise=None)
    layer.load_state_dict(lstm.state_dict())
    features, states = torch.randn(4 * 6, 3), (torch.randn(1, 4, 5), torch.randn(1, 4, 5))
    starts = (torch.rand(4 * 6) < 0.3).float()
    ours = sb3.ResettingPolicy._process_sequence(features, states, starts, layer)
    theirs = sb3.MlpLstmPolicy._process_sequence(features, states, starts, lstm)
    torch.testing.assert_close(ours, theirs)

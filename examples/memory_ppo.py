"""Recurrent PPO: an agent with memory learns by resets inside the sequence and replayed noise.

An actor-critic with an LSTM or GRU learns a POPGym environment. Three things differ from a feedforward PPO:

    resets      a rollout contains the ends of several episodes. `reset=` of noisyact's layers zeroes the state of an
                environment where a new episode begins, inside one call over the whole rollout.
    noise       a noisy layer is part of the policy: the probability of an action depends on the noise of its step. An
                update computes the probabilities again. `seed=`, `first_step=` and `rows=` give every step and every
                environment the noise that it had in the rollout, so PPO's ratio is 1 before the first update.
    minibatches are environments with all their steps, because the state runs through them.

`--stepped` computes the same network as most implementations do: torch's layer is called once for each step of the
rollout, and the state is zeroed between the calls. Weights, environments and actions come from the same seeds.

Needs the extras experiments and rl: pip install "noisyact[experiments,rl]"

Run: python examples/memory_ppo.py [--layer noisy-lstm] [--noise nah] [--seeds 1 2 3] [--out DIR] [--smoke]
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import popgym.envs  # noqa: F401  (registers the environments)
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import noisyact as na
from noisyact_lab.engine.folder.files import read_json, write_json
from noisyact_lab.engine.folder.records import signature

LAYERS = ("lstm", "gru", "noisy-lstm", "noisy-gru")
POINTS, EVALUATION_STEPS = 25, 512  # of a curve; of each environment
State = Any  # of an LSTM the pair (h, c), of a GRU h; each [1, environments, units]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run depends on. The record of a run contains it."""

    environment: str = "RepeatPreviousEasy"
    layer: str = "noisy-lstm"
    stepped: bool = False
    noise: str = "nah"
    anneal: bool = False
    replay: bool = True
    seed: int = 1
    steps: int = 100_000
    environments: int = 16
    rollout: int = 128
    units: int = 64
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 3e-3
    discount: float = 0.9
    trace: float = 0.95  # lambda of generalised advantage estimation
    clip: float = 0.2
    entropy: float = 0.01
    value: float = 0.5
    gradient_norm: float = 0.5

    def __post_init__(self) -> None:
        if self.layer not in LAYERS:
            raise ValueError(f"layer={self.layer!r}: must be one of {', '.join(LAYERS)}")
        if f"popgym-{self.environment}-v0" not in gymnasium.registry:
            names = sorted(name[7:-3] for name in gymnasium.registry if name.startswith("popgym-"))
            raise ValueError(f"environment={self.environment!r}: must be one of {', '.join(names)}")
        if self.stepped and self.noisy:
            raise ValueError(f"stepped=True: torch has no {self.layer}; layer must be lstm or gru")
        if self.anneal and not self.noisy:
            raise ValueError(f"anneal=True: the layer {self.layer} has no noise; layer must be noisy-lstm or noisy-gru")
        for name in ("steps", "environments", "rollout", "units", "epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.environments % self.minibatches:
            raise ValueError(
                f"minibatches={self.minibatches}: must divide the number of environments, {self.environments}"
            )
        if self.steps < self.rollout * self.environments:
            raise ValueError(
                f"steps={self.steps}: must be at least one rollout, {self.rollout} steps of {self.environments} "
                f"environments, {self.rollout * self.environments}"
            )
        na.scheme(self.noise)  # raises if it is not the text of a scheme

    @property
    def noisy(self) -> bool:
        """Whether the layer draws noise."""
        return self.layer.startswith("noisy-")

    @property
    def arm(self) -> str:
        """The name of the settings that differ between runs of one comparison."""
        parts = ("anneal" if self.anneal else "", "" if self.replay else "fresh", "stepped" if self.stepped else "")
        return "-".join((self.layer, *filter(None, parts)))

    @property
    def updates(self) -> int:
        """The number of rollouts, and of the updates after them."""
        return self.steps // (self.rollout * self.environments)


class Agent(nn.Module):
    """An actor and a critic that share an encoder and a recurrent layer.

    Args:
        observation: the number of values that the agent sees at a step.
        actions: the number of actions.
        settings: which layer, and how many units.
    """

    def __init__(self, observation: int, actions: int, settings: Settings) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(observation, settings.units), nn.ReLU())
        kind, sizes = settings.layer.removeprefix("noisy-"), (settings.units, settings.units)
        self.stepped = settings.stepped
        if settings.stepped:
            self.memory = (nn.LSTM if kind == "lstm" else nn.GRU)(*sizes)
        else:
            layer = na.NoisyLSTM if kind == "lstm" else na.NoisyGRU
            self.memory = layer(*sizes, noise=settings.noise if settings.noisy else None, hard=settings.noisy)
        self.actor, self.critic = nn.Linear(settings.units, actions), nn.Linear(settings.units, 1)
        with torch.no_grad():
            self.actor.weight.mul_(0.01)  # the first policy is nearly uniform

    def forward(self, x: Tensor, state: State, reset: Tensor, **noise: Any) -> tuple[Categorical, Tensor, State]:
        """Return the policy and the value at each step, and the last state.

        Args:
            x: observations [steps, environments, values].
            state: the state before the first step.
            reset: bool [steps, environments], true where a new episode begins.
            noise: `seed`, `first_step` and `rows` of the recurrent layer.
        """
        if self.stepped:
            features, state = step_by_step(self.memory, self.encoder(x), state, reset)
        else:
            features, state = self.memory(self.encoder(x), state, reset=reset, **noise)
        policy = Categorical(logits=self.actor(features), validate_args=False)
        return policy, self.critic(features).squeeze(-1), state

    def first_state(self, environments: int) -> State:
        """A state of zeros."""
        zeros = torch.zeros(1, environments, self.memory.hidden_size)
        return (zeros, zeros) if isinstance(self.memory, nn.LSTM | na.NoisyLSTM) else zeros


def step_by_step(layer: nn.Module, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
    """Call torch's layer once for each step, with the state zeroed where a new episode begins."""
    outputs = []
    for x_t, reset_t in zip(x, reset, strict=True):
        kept = (~reset_t).to(x.dtype)[None, :, None]
        state = tuple(kept * part for part in state) if isinstance(state, tuple) else kept * state
        output, state = layer(x_t[None], state)
        outputs.append(output)
    return torch.cat(outputs), state


def rows_of(state: State, rows: Tensor) -> State:
    """The states of some environments."""
    return tuple(part[:, rows] for part in state) if isinstance(state, tuple) else state[:, rows]


@dataclasses.dataclass
class Rollout:
    """What the environments and the agent did for some steps: tensors [steps, environments, ...].

    `state` is the agent's state before the first step, and `seed` is that of the noise.
    """

    observations: Tensor
    resets: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    rewards: Tensor
    ends: Tensor
    last_value: Tensor
    state: State
    seed: int


class Environments:
    """Several copies of an environment, which begin a new episode as soon as one ends.

    A time limit is part of a POPGym task, so it ends an episode as any other end does.

    Args:
        settings: which environment, how many copies, and the seed.
    """

    def __init__(self, settings: Settings) -> None:
        def make() -> gymnasium.Env:
            environment = gymnasium.make(f"popgym-{settings.environment}-v0", disable_env_checker=True)
            return gymnasium.wrappers.FlattenObservation(environment)

        self._copies = gymnasium.vector.SyncVectorEnv(
            [make] * settings.environments, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
        )
        observations, actions = self._copies.single_observation_space, self._copies.single_action_space
        if not isinstance(actions, gymnasium.spaces.Discrete):
            raise ValueError(f"environment={settings.environment!r}: its actions are {actions}, and must be Discrete")
        self.values, self.actions = int(np.prod(observations.shape or ())), int(actions.n)
        self.observation = torch.from_numpy(self._copies.reset(seed=1000 * settings.seed)[0]).float()
        self.new = torch.ones(settings.environments, dtype=torch.bool)
        self._returns = np.zeros(settings.environments)
        self.finished: list[float] = []

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rewards and which episodes ended. The next observation is in `observation`."""
        observation, reward, terminated, truncated, _ = self._copies.step(action.numpy())
        ended = terminated | truncated
        self._returns += reward
        self.finished += self._returns[ended].tolist()
        self._returns[ended] = 0.0
        self.observation, self.new = torch.from_numpy(observation).float(), torch.from_numpy(ended)
        return torch.from_numpy(reward).float(), self.new

    def take_finished(self) -> list[float]:
        """The returns of the episodes that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished


@torch.no_grad()
def collect(agent: Agent, environments: Environments, state: State, steps: int) -> tuple[Rollout, State]:
    """Let the agent act for some steps. Step t of the rollout has the noise of position t of the rollout's seed."""
    seed, first, history = int(torch.randint(2**62, ())), state, []
    for step in range(steps):
        x, new = environments.observation, environments.new
        policy, value, state = agent(x[None], state, new[None], seed=seed, first_step=step)
        action = policy.sample()
        log_prob = policy.log_prob(action)
        reward, ended = environments.step(action[0])
        history.append((x, new, action[0], log_prob[0], value[0], reward, ended))
    last = agent(environments.observation[None], state, environments.new[None], seed=seed, first_step=steps)[1][0]
    return Rollout(*map(torch.stack, zip(*history, strict=True)), last_value=last, state=first, seed=seed), state


def advantages_of(rollout: Rollout, discount: float, trace: float) -> Tensor:
    """Generalised advantage estimates: sums of temporal differences that decay with `discount * trace`."""
    advantages, following, value = torch.zeros_like(rollout.rewards), torch.zeros(()), rollout.last_value
    for step in reversed(range(len(advantages))):
        goes_on = (~rollout.ends[step]).float()
        difference = rollout.rewards[step] + discount * goes_on * value - rollout.values[step]
        following = difference + discount * trace * goes_on * following
        advantages[step], value = following, rollout.values[step]
    return advantages


def log_ratio(agent: Agent, rollout: Rollout, rows: Tensor, replay: bool) -> tuple[Tensor, Categorical, Tensor]:
    """The logarithm of PPO's ratio for some environments, with the policy and the values it came from.

    With `replay` the noise is that of the rollout, and the ratio of an agent that has not changed is 1.
    """
    noise = {"seed": rollout.seed, "rows": rows} if replay else {}
    policy, values, _ = agent(
        rollout.observations[:, rows], rows_of(rollout.state, rows), rollout.resets[:, rows], **noise
    )
    return policy.log_prob(rollout.actions[:, rows]) - rollout.log_probs[:, rows], policy, values


def update(agent: Agent, optimiser: torch.optim.Optimizer, rollout: Rollout, settings: Settings) -> float:
    """Improve the agent on a rollout. Returns the largest |log ratio| before the first change of the weights."""
    advantages = advantages_of(rollout, settings.discount, settings.trace)
    targets, before = advantages + rollout.values, []
    for _ in range(settings.epochs):
        for rows in torch.randperm(settings.environments).chunk(settings.minibatches):
            logarithm, policy, values = log_ratio(agent, rollout, rows, settings.replay)
            if not before:
                before.append(logarithm.abs().max().item())
            ratio, advantage = logarithm.exp(), advantages[:, rows]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - settings.clip, 1 + settings.clip) * advantage)
            error = (values - targets[:, rows]).square()
            loss = 0.5 * settings.value * error.mean() - gain.mean() - settings.entropy * policy.entropy().mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), settings.gradient_norm)
            optimiser.step()
    return before[0]


def train(settings: Settings) -> dict[str, Any]:
    """Train an agent and return its record: settings, curve, final evaluation, speed, and what it was run with."""
    torch.manual_seed(settings.seed)
    environments = Environments(settings)
    agent = Agent(environments.values, environments.actions, settings)
    optimiser = torch.optim.Adam(agent.parameters(), lr=settings.learning_rate, eps=1e-5)
    rate = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, settings.updates)
    scale = None
    if settings.anneal:
        scale = na.NoiseScheduler(agent, na.anneal.linear(na.scheme(settings.noise).scale, 0.0, settings.updates))
    state, before = agent.first_state(settings.environments), []
    curve: dict[str, list[Any]] = {"steps": [], "return": [], "episodes": []}
    seconds = {"rollout": 0.0, "update": 0.0}
    for count in range(1, settings.updates + 1):
        start = time.process_time()
        rollout, state = collect(agent, environments, state, settings.rollout)
        middle = time.process_time()
        before.append(update(agent, optimiser, rollout, settings))
        seconds["rollout"] += middle - start
        seconds["update"] += time.process_time() - middle
        if settings.replay and before[0] > 1e-4:
            raise RuntimeError(f"PPO's ratio is not 1 before the first update: |log ratio| is up to {before[0]:.2g}")
        rate.step()
        if scale is not None:
            scale.step()
        if count % math.ceil(settings.updates / POINTS) == 0 or count == settings.updates:
            finished, done = environments.take_finished(), count * settings.rollout * settings.environments
            curve["steps"].append(done)
            curve["return"].append(round(statistics.fmean(finished), 4) if finished else None)
            curve["episodes"].append(len(finished))
            speeds = ", ".join(f"{name} {done / spent:,.0f}" for name, spent in seconds.items())
            print(f"{done:>9,} steps  return {curve['return'][-1]}  steps/s: {speeds}", flush=True)
    total = settings.updates * settings.rollout * settings.environments
    return {
        "arm": settings.arm,
        "settings": dataclasses.asdict(settings),
        "curve": curve,
        "evaluation": evaluate(agent, settings),
        "steps_per_second": {name: round(total / spent) for name, spent in seconds.items()}
        | {"both": round(total / sum(seconds.values()))},
        "log_ratio_before_update": {"first": before[0], "largest": max(before), "mean": statistics.fmean(before)},
        "signature": signature({"device": "cpu"}),
    }


def evaluate(agent: Agent, settings: Settings) -> dict[str, float]:
    """The returns of new episodes in evaluation mode, where noise is replaced by its expectation."""
    environments = Environments(dataclasses.replace(settings, seed=settings.seed + 1_000_000))
    agent.eval()
    collect(agent, environments, agent.first_state(settings.environments), EVALUATION_STEPS)
    finished = environments.take_finished()
    return {"return": round(statistics.fmean(finished), 4), "episodes": len(finished)}


def run(settings: Settings, folder: Path, force: bool) -> None:
    """Train, and write the record whole. A finished run with these settings is not repeated."""
    path = folder / f"{settings.environment}-{settings.arm}-seed-{settings.seed}.json"
    if path.exists() and not force:
        if read_json(path, dict)["settings"] != dataclasses.asdict(settings):
            raise ValueError(f"{path} is of other settings: choose another --out, or replace it with --force")
        print(f"{path} is there already")
        return
    print(f"{settings.environment}, {settings.arm}, seed {settings.seed}")
    write_json(path, train(settings))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Recurrent PPO on a POPGym environment, with or without noise.")
    parser.add_argument("--out", type=Path, default=Path("out/memory-ppo"), help="folder of the records")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--force", action="store_true", help="repeat runs whose records are there")
    for field in dataclasses.fields(Settings):
        name = "--" + field.name.replace("_", "-")
        if field.name == "seed":
            continue
        if isinstance(field.default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            parser.add_argument(name, type=type(field.default), default=field.default)
    parser.add_argument("--smoke", action="store_true", help="a small size, in seconds")
    options = vars(parser.parse_args(arguments))
    out, seeds, force = (options.pop(name) for name in ("out", "seeds", "force"))
    if options.pop("smoke"):
        options |= {"steps": 512, "environments": 4, "rollout": 64, "units": 8, "epochs": 1, "minibatches": 2}
    torch.set_num_threads(1)  # the network is too small to benefit from more threads
    try:
        for settings in [Settings(**options, seed=seed) for seed in seeds]:
            run(settings, out, force)
    except (ValueError, OSError) as error:
        sys.exit(f"memory_ppo.py: {error}")


if __name__ == "__main__":
    main()

"""RecurrentPPO of sb3-contrib: its policy converted by accelerate and noisify, and with resets inside one call.

sb3-contrib zeroes the state of an LSTM at the beginning of an episode. It does so in a loop in Python over the steps of
a minibatch, which calls the LSTM once for each step. Four policies learn for the same number of steps:

    sb3-contrib  the policy as it is, with nn.LSTM
    accelerate   its LSTMs replaced by `na.accelerate` where noisyact's kernels are faster, and still the loop. On a CPU
                 nn.LSTM is as fast and stays; on a GPU an LSTM of 200 to 1,500 units is replaced.
    resets       its LSTMs replaced by the same soft layers of noisyact, and a policy class that gives the resets to the
                 layer: one call for all steps
    noisify      its LSTMs and tanh functions replaced by `na.noisify`, with the class of `resets`

RecurrentPPO collects a rollout in evaluation mode and trains in training mode. A noisy policy therefore acts by the
expectation of its noise and draws fresh noise in updates, so PPO's ratio is not 1 before the first update. The column
"noise" has the largest change of an action's log probability from one draw to another. sb3-contrib's interface has no
place for the seed of a rollout; memory_ppo.py keeps it and replays the noise.

Needs the extra rl: pip install "noisyact[rl]"

Run: python examples/sb3_recurrent_ppo.py [--steps N] [--environment ID] [--noise nah] [--smoke]
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from typing import Any

import gymnasium
import popgym.envs  # noqa: F401  (registers the environments)
import torch
from sb3_contrib import RecurrentPPO
from sb3_contrib.ppo_recurrent import MlpLstmPolicy
from stable_baselines3.common.env_util import make_vec_env
from torch import Tensor, nn

import noisyact as na
from noisyact.text_table import text_table

POLICIES = ("sb3-contrib", "accelerate", "resets", "noisify")


class ResettingPolicy(MlpLstmPolicy):
    """sb3-contrib's policy with resets inside one call of a noisyact layer."""

    @staticmethod
    def _process_sequence(
        features: Tensor, lstm_states: tuple[Tensor, Tensor], episode_starts: Tensor, lstm: nn.LSTM
    ) -> tuple[Tensor, Any]:
        """The LSTM's output for each row of the features, and its last state.

        Rows are ordered by sequence and then by step, as sb3-contrib orders them.
        """
        sequences = lstm_states[0].shape[1]
        x = features.unflatten(0, (sequences, -1)).transpose(0, 1)
        reset = episode_starts.unflatten(0, (sequences, -1)).transpose(0, 1).bool()
        output, state = lstm(x, lstm_states, reset=reset)
        return output.transpose(0, 1).flatten(0, 1), state


def with_resets(policy: nn.Module) -> None:
    """Replace the LSTMs of a policy by noisyact's, which compute the same function and know resets.

    The Parameter objects stay the same, so the policy's optimiser still has them.
    """
    for name, old in list(policy.named_children()):
        if isinstance(old, nn.LSTM) and not isinstance(old, na.NoisyLSTM):
            new = na.NoisyLSTM(old.input_size, old.hidden_size, old.num_layers, hard=False, noise=None)
            for key, parameter in old.named_parameters():
                setattr(new, key, parameter)
            setattr(policy, name, new)
            print(f"{name}: {new}")


def build(policy: str, options: argparse.Namespace) -> RecurrentPPO:
    """A RecurrentPPO whose policy is one of POLICIES."""
    environments = make_vec_env(options.environment, n_envs=options.environments, seed=options.seed)
    ppo = RecurrentPPO(
        ResettingPolicy if policy in ("resets", "noisify") else MlpLstmPolicy, environments, seed=options.seed,
        n_steps=options.rollout, batch_size=options.rollout * options.environments // 4, n_epochs=options.epochs,
        policy_kwargs={"lstm_hidden_size": options.units}, device="cpu",
    )  # fmt: skip
    if policy == "accelerate":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the printed table says too that nothing was replaced
            na.accelerate(ppo.policy, inplace=True, verbose=True)  # keeps the Parameter objects
    elif policy == "resets":
        with_resets(ppo.policy)
    elif policy == "noisify":
        na.noisify(ppo.policy, options.noise, inplace=True, verbose=True)
        learned = list(na.noise_parameters(ppo.policy))
        ppo.policy.optimizer.add_param_group({"params": learned})  # p is new, and the optimiser does not have it yet
    return ppo


@torch.no_grad()
def change_by_noise(ppo: RecurrentPPO) -> float:
    """The largest change of an action's log probability between two evaluations of one minibatch in training mode."""
    policy: Any = ppo.policy  # a recurrent policy, whose batches have more fields than RolloutBuffer declares
    policy.set_training_mode(True)
    batch: Any = next(iter(ppo.rollout_buffer.get(ppo.batch_size)))
    actions = batch.actions.long().flatten()
    draws = [
        policy.evaluate_actions(batch.observations, actions, batch.lstm_states, batch.episode_starts)[1]
        for _ in range(2)
    ]
    return (draws[0] - draws[1])[batch.mask > 1e-8].abs().max().item()


def learn(policy: str, options: argparse.Namespace) -> list[str]:
    """Train one policy and return its row of the table."""
    print(f"\n{policy}")
    torch.manual_seed(options.seed)
    ppo = build(policy, options)
    start = time.process_time()
    ppo.learn(options.steps)
    seconds = time.process_time() - start
    episodes = [episode["r"] for episode in ppo.ep_info_buffer or ()]
    return [
        policy,
        f"{ppo.num_timesteps / seconds:,.0f}",
        f"{sum(episodes) / len(episodes):.2f}" if episodes else "no episode ended",
        f"{change_by_noise(ppo):.2g}",
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train RecurrentPPO with nn.LSTM and with noisyact's layers.")
    parser.add_argument("--environment", default="popgym-PositionOnlyCartPoleEasy-v0", help="the id of an environment")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument("--noise", default="nah")
    for name, default in (("steps", 8192), ("environments", 8), ("rollout", 128), ("units", 64), ("epochs", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="a small size, in seconds")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.steps, options.environments, options.rollout, options.units, options.epochs = 64, 2, 32, 8, 1
    try:
        na.scheme(options.noise)
        gymnasium.spec(options.environment)
    except (ValueError, gymnasium.error.Error) as error:
        sys.exit(f"sb3_recurrent_ppo.py: {error}")
    for name in ("steps", "environments", "rollout", "units", "epochs"):
        if getattr(options, name) < 1:
            sys.exit(f"sb3_recurrent_ppo.py: --{name} {getattr(options, name)}: must be at least 1")
    torch.set_num_threads(1)
    rows = [learn(policy, options) for policy in options.policies]
    print()
    print(text_table(("policy", "steps/s", "return", "noise"), rows))


if __name__ == "__main__":
    main()

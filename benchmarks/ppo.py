"""How fast PPO goes, learning included: `polyarm train` against the same algorithm in one file.

The peer is written as CleanRL writes its PPO: gymnasium's AsyncVectorEnv of Meta-World's own env,
a tensor per quantity, one policy call per step that also gives value and log-probability, a loop
over minibatches with PyTorch's own clipping and Adam. Both have the same networks, horizon, epochs,
minibatches and normalisation, and play reach-v3 from states with episodes of 500 steps.

Both compute with one thread of PyTorch: on two cores a second one only waits for the first with
layers of 64, and takes the core from a worker meanwhile. (CleanRL leaves PyTorch its default, one
per core; --peer-threads 2 measures that.)

    python benchmarks/ppo.py --num-envs 8 --updates 3 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import measure
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv
from metaworld_envs import TASK, PlainEnv
from torch import nn

from polyarm.distributed.ranks import Rank, Share
from polyarm.distributed.torchrun import ProcessGroup
from polyarm.training.options import TrainOptions
from polyarm.training.play import Play
from polyarm.training.ppo import Learner
from polyarm.vector.host import cores


class OneFile(nn.Module):
    """Actor and critic of the peer."""

    def __init__(self, obs: int, actions: int, options: TrainOptions) -> None:
        super().__init__()
        hidden = options.train_hidden
        self.critic = nn.Sequential(
            layer(obs, hidden), nn.Tanh(), layer(hidden, hidden), nn.Tanh(), layer(hidden, 1, 1.0)
        )
        self.actor = nn.Sequential(
            layer(obs, hidden), nn.Tanh(), layer(hidden, hidden), nn.Tanh(),
            layer(hidden, actions, 0.01),
        )  # fmt: skip
        self.logstd = nn.Parameter(torch.full((1, actions), float(np.log(options.first_std))))

    def get_value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs)

    def get_action_and_value(self, obs: torch.Tensor, action: torch.Tensor | None = None) -> Any:
        mean = self.actor(obs)
        known = torch.distributions.Normal(mean, self.logstd.expand_as(mean).exp())
        if action is None:
            action = known.sample()
        return action, known.log_prob(action).sum(1), known.entropy().sum(1), self.critic(obs)


def layer(size: int, outputs: int, std: float = np.sqrt(2)) -> nn.Linear:
    made = nn.Linear(size, outputs)
    nn.init.orthogonal_(made.weight, std)
    nn.init.constant_(made.bias, 0.0)
    return made


class Moments:
    """Running mean and deviation, as in gymnasium's wrappers."""

    def __init__(self, size: int) -> None:
        self.mean, self.var, self.count = np.zeros(size), np.ones(size), 1e-4

    def update(self, rows: np.ndarray[Any, Any]) -> None:
        mean, var, count = rows.mean(0), rows.var(0), len(rows)
        total, apart = self.count + count, mean - self.mean
        self.mean = self.mean + apart * count / total
        weighted = self.var * self.count + var * count + apart**2 * self.count * count / total
        self.var, self.count = weighted / total, total

    def normalise(self, rows: Any) -> Any:
        return np.clip((rows - self.mean) / np.sqrt(self.var + 1e-8), -10, 10)


class Peer:
    """PPO in one file: `update` plays and learns once, and returns the env steps it made."""

    def __init__(self, num_envs: int, options: TrainOptions) -> None:
        self.envs = AsyncVectorEnv([PlainEnv(seed) for seed in range(num_envs)], context="spawn")
        self.options, self.num_envs = options, num_envs
        obs, actions = self.envs.single_observation_space.shape[0], 4
        self.agent = OneFile(obs, actions, options)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=options.train_lr, eps=1e-5)
        self.seen, self.worth = Moments(obs), Moments(1)
        shape = (options.horizon, num_envs)
        self.obs, self.actions = torch.zeros((*shape, obs)), torch.zeros((*shape, actions))
        self.logprobs, self.rewards = torch.zeros(shape), torch.zeros(shape)
        self.dones, self.values = torch.zeros(shape), torch.zeros(shape)
        first, _ = self.envs.reset(seed=0)
        self.raw: list[Any] = []
        self.next_obs = torch.Tensor(self.look(first))
        self.next_done = torch.zeros(num_envs)

    def look(self, obs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        self.raw.append(obs)
        return self.seen.normalise(obs)

    def update(self) -> int:
        o = self.options
        made = 0
        for step in range(o.horizon):
            self.obs[step], self.dones[step] = self.next_obs, self.next_done
            with torch.no_grad():
                action, logprob, _, value = self.agent.get_action_and_value(self.next_obs)
                self.values[step] = value.flatten()
            self.actions[step], self.logprobs[step] = action, logprob
            clipped = np.clip(action.cpu().numpy(), -1, 1)
            obs, reward, terminated, truncated, _ = self.envs.step(clipped)
            made += int((self.next_done == 0).sum())  # a step after an end only resets
            self.rewards[step] = torch.tensor(reward).view(-1)
            self.next_obs = torch.Tensor(self.look(obs))
            self.next_done = torch.Tensor(np.logical_or(terminated, truncated))
        self.learn()
        self.seen.update(np.concatenate(self.raw))
        self.raw = []
        return made

    def learn(self) -> None:
        o = self.options
        scale, mean = float(np.sqrt(self.worth.var[0] + 1e-8)), float(self.worth.mean[0])
        with torch.no_grad():
            values = self.values * scale + mean
            next_value = self.agent.get_value(self.next_obs).reshape(1, -1) * scale + mean
            advantages, last = torch.zeros_like(self.rewards), 0.0
            for t in reversed(range(o.horizon)):
                final = t == o.horizon - 1
                alive = 1.0 - (self.next_done if final else self.dones[t + 1])
                following = next_value if final else values[t + 1]
                delta = self.rewards[t] + o.gamma * following * alive - values[t]
                advantages[t] = last = delta + o.gamma * o.gae_lambda * alive * last
            returns = advantages + values
        self.worth.update(returns.numpy().reshape(-1, 1))
        b_obs = self.obs.reshape((-1, self.obs.shape[-1]))
        b_actions = self.actions.reshape((-1, self.actions.shape[-1]))
        b_logprobs, b_advantages = self.logprobs.reshape(-1), advantages.reshape(-1)
        b_returns = (returns.reshape(-1) - float(self.worth.mean[0])) / float(
            np.sqrt(self.worth.var[0] + 1e-8)
        )
        batch = len(b_obs)
        size = batch // o.minibatches
        indices = np.arange(batch)
        for _ in range(o.epochs):
            np.random.shuffle(indices)
            for start in range(0, batch, size):
                mb = indices[start : start + size]
                _, newlogprob, entropy, newvalue = self.agent.get_action_and_value(
                    b_obs[mb], b_actions[mb]
                )
                ratio = (newlogprob - b_logprobs[mb]).exp()
                mb_advantages = b_advantages[mb]
                mb_advantages = (mb_advantages - mb_advantages.mean()) / (
                    mb_advantages.std() + 1e-8
                )
                pg_loss = torch.max(
                    -mb_advantages * ratio,
                    -mb_advantages * torch.clamp(ratio, 1 - o.clip, 1 + o.clip),
                ).mean()
                v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb]) ** 2).mean()
                loss = pg_loss - o.entropy * entropy.mean() + o.value_weight * v_loss
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), o.max_grad_norm)
                self.optimizer.step()


def our_update(options: TrainOptions, stack: ExitStack) -> Callable[[], int]:
    rank = Rank(0, 1)
    play = stack.enter_context(Play(options, Share(rank, (options.num_envs,))))
    play.begin()
    learner = Learner(options, play, ProcessGroup(rank))
    number = steps = 0

    def update() -> int:
        nonlocal number, steps
        number += 1
        before, steps = steps, learner.update(number).steps
        return steps - before

    return update


def timed(update: Callable[[], int], updates: int, threads: int) -> float:
    """Env steps per second of so many updates."""
    torch.set_num_threads(threads)
    began = time.perf_counter()
    made = sum(update() for _ in range(updates))
    return made / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--updates", type=int, default=3, help="per contender and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-threads", type=int, default=1)
    chosen = parser.parse_args()
    os.environ["MUJOCO_GL"] = "disable"  # nobody renders: no window library
    warnings.filterwarnings("ignore", module="gymnasium")
    options = TrainOptions(
        task=f"metaworld/{TASK}", num_envs=chosen.num_envs, num_workers=cores(), train_updates=10**6
    )
    with ExitStack() as stack:
        ours = our_update(options, stack)
        peer = Peer(chosen.num_envs, options)
        stack.callback(peer.envs.close)
        for warm_up in (ours, peer.update):
            warm_up()
        results = measure.interleave(
            {
                "polyarm": lambda: timed(ours, chosen.updates, 1),
                "one_file": lambda: timed(peer.update, chosen.updates, chosen.peer_threads),
            },
            chosen.rounds,
        )
    report(results, chosen, options)


def report(results: measure.Rounds, chosen: argparse.Namespace, options: TrainOptions) -> None:
    rates = measure.medians(results)
    found = measure.ratio(results, "polyarm", "one_file")
    rows = [(name, f"{value:,.0f} /s") for name, value in rates.items()]
    measure.print_table(
        f"PPO, {chosen.num_envs} envs on {cores()} cores", [*rows, ("ppo_ratio", f"{found:.2f}")]
    )
    names = ("horizon", "epochs", "minibatches", "train_hidden", "num_workers")
    measure.print_json(
        {
            "benchmark": "ppo",
            "num_envs": chosen.num_envs,
            "updates": chosen.updates,
            "rounds": chosen.rounds,
            "peer_threads": chosen.peer_threads,
            **{name: getattr(options, name) for name in names},
            "ppo_ratio": found,
            "env_steps_per_s": rates,
        }
    )


if __name__ == "__main__":
    main()

"""Fine-tune a policy on Meta-World with RLOO or GRPO, from nothing but whether episodes succeed.

1. A small network is cloned from a few episodes of the task's scripted expert: a weak start.
2. `polyarm.collect` plays groups: noisy repeats of one initial state. A repeat is as good as it did
   better than the others of its group; there is no value function and no shaped reward. Groups
   whose repeats all fared alike teach nothing and are skipped.
3. The same held-out episodes are played before and after, without noise, and compared in pairs.

Examples:
  python examples/finetune_rloo.py
  python examples/finetune_rloo.py --algorithm grpo --seed 1 --out actor.pt
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro
from torch import Tensor, nn

import polyarm
from polyarm.policies import ExpertPolicy, TorchPolicy
from polyarm.report.compare import compare

HOLD = 5  # steps for which an action is held: few decisions, and noise that moves the arm
ROWS = 16  # of every forward pass, so that an episode is the same in any batch, to the bit


@dataclass(frozen=True)
class Options:
    """Clone a policy from a few demonstrations, then fine-tune it by its successes alone."""

    task: str = "metaworld/push-v3"  # any task with a state and an expert: all of Meta-World's
    algorithm: Literal["rloo", "grpo"] = "rloo"  # hold a repeat against the others, or against all
    demos: int = 6  # the expert's episodes to clone from; more of them make a stronger start
    iterations: int = 40  # updates, each on groups that the policy has just played
    groups: int = 12  # informative groups per update; up to 4 times as many are played to find them
    group_size: int = 8  # repeats of one initial state, at least 2
    epochs: int = 4  # passes over the decisions of an update
    learning_rate: float = 3e-4  # while fine-tuning
    clip: float = 0.2  # how far an update may move a decision's probability, as a share of it
    std: float = 0.2  # spread of the noise on actions, which go from -1 to 1, while fine-tuning
    max_steps: int = 120  # horizon of an episode
    eval_episodes: int = 200  # held out, played before and after; the same ones for every seed
    num_envs: int = 8  # envs that run at once; results do not depend on it
    seed: int = 0  # of the network, its noise and the episodes to learn from
    out: Path | None = None  # file for the final weights


class Actor(nn.Module):
    """A Gaussian over the next action, given the state; inputs are scaled by ``states`` (B, S)."""

    def __init__(self, states: Tensor, num_actions: int, std: float) -> None:
        super().__init__()
        self.std = std
        self.register_buffer("center", states.mean(0))
        self.register_buffer("scale", states.std(0).clamp(min=0.01))
        hidden = [nn.Linear(states.shape[1], 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh()]
        self.net = nn.Sequential(*hidden, nn.Linear(128, num_actions))

    def means(self, states: Tensor) -> Tensor:
        """(B, A)."""
        return self.net(((states - self.center) / self.scale).clamp(-5, 5))

    def log_prob(self, states: Tensor, actions: Tensor) -> Tensor:
        """(B,), of actions (B, A)."""
        return torch.distributions.Normal(self.means(states), self.std).log_prob(actions).sum(1)

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions (B, HOLD, A), and per decision what an update must know about them."""
        actions = self.means(inputs["state"]) + self.std * inputs["noise"]
        extras = {"action": actions, "log_prob": self.log_prob(inputs["state"], actions)}
        return actions[:, None].expand(-1, HOLD, -1), extras

    def policy(self, *, noisy: bool) -> TorchPolicy:
        """This actor as polyarm plays it; noise is drawn by the episode's key."""

        def to_inputs(batch: polyarm.Batch) -> dict[str, np.ndarray]:
            noise = batch.noise(self.net[-1].out_features)
            return {"state": batch.obs["state"], "noise": noise if noisy else 0 * noise}

        exact = {"batch_size": ROWS, "batch_invariant": True}
        return TorchPolicy(self, device="cpu", to_inputs=to_inputs, **exact)


def initial_states(task: str, stream: int, places: range) -> list[polyarm.EpisodeKey]:
    """Episodes of a task, by their places in a stream; streams have none in common."""
    suite, _, name = task.partition("/")
    return [polyarm.EpisodeKey(suite, name, stream * polyarm.STREAM + place) for place in places]


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step down the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def clone_expert(options: Options) -> Actor:
    """An actor that imitates a few successful episodes of the expert."""
    keys = initial_states(options.task, 2 * options.seed + 1, range(10 * options.demos))
    groups = polyarm.collect(
        ExpertPolicy(steps=1), keys, group_size=1, num_groups=options.demos, ordered=True,
        accept=lambda group: group.successes == 1, num_envs=options.num_envs,
    )  # fmt: skip
    trajectories = [group.rollouts[0].trajectory for group in groups]
    if len(trajectories) < options.demos:
        sys.exit(f"the expert of {options.task} succeeds in {len(trajectories)} of {len(keys)}")
    states = torch.cat([torch.from_numpy(each["obs"]["state"]) for each in trajectories])
    actions = [torch.from_numpy(each["actions"]).clamp(-1, 1) for each in trajectories]  # (T, A)
    padded = [torch.cat([each, each[-1:].expand(HOLD - 1, -1)]) for each in actions]
    held = torch.cat([each.unfold(0, HOLD, 1).mean(2) for each in padded])
    actor = Actor(states, held.shape[1], options.std)
    optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    for _ in range(300):
        for rows in torch.randperm(len(states)).split(256):
            step(optimizer, (actor.means(states[rows]) - held[rows]).square().mean())
    return actor


def advantages(successes: Tensor, algorithm: str) -> Tensor:
    """How much better each repeat (k,) did than its group."""
    if algorithm == "rloo":
        return successes - (successes.sum() - successes) / (len(successes) - 1)
    return (successes - successes.mean()) / successes.std()


def clipped_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """PPO's objective over decisions (D,): good ones become likelier, within limits."""
    ratio = (log_prob - old_log_prob).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def play(
    policy: TorchPolicy, env: polyarm.VectorEnv, options: Options, iteration: int
) -> list[polyarm.RolloutGroup]:
    """Groups that teach something, each time of new initial states."""
    began, rates = time.perf_counter(), []

    def accept(group: polyarm.RolloutGroup) -> bool:
        rates.append(group.successes / options.group_size)
        return polyarm.is_informative(group)

    most = 4 * options.groups
    places = range(most * iteration, most * (iteration + 1))
    groups = list(polyarm.collect(
        policy, initial_states(env.tasks[0], 2 * options.seed + 2, places), accept=accept,
        group_size=options.group_size, num_groups=options.groups, ordered=True, env=env,
    ))  # fmt: skip
    what = f"{np.mean(rates):4.0%} succeed with noise, {len(groups)} of {len(rates)} groups teach"
    print(f"update {iteration + 1:2}: {what} ({time.perf_counter() - began:.1f} s)", flush=True)
    return groups


def decisions(groups: list[polyarm.RolloutGroup], algorithm: str) -> list[Tensor]:
    """States, actions, log-probabilities and advantages of all decisions, each (D, ...)."""
    parts = []
    for group in groups:
        successes = torch.tensor([float(rollout.success) for rollout in group.rollouts])
        scored = zip(group.rollouts, advantages(successes, algorithm), strict=True)
        for rollout, advantage in scored:
            made = rollout.trajectory["extras"]
            arrays = rollout.trajectory["obs"]["state"], made["action"], made["log_prob"]
            parts.append([*map(torch.from_numpy, arrays), advantage.expand(len(arrays[0]))])
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def finetune(actor: Actor, env: polyarm.VectorEnv, options: Options) -> None:
    """Play and learn in turns, always in the same envs."""
    policy = actor.policy(noisy=True)  # plays with the weights that the actor has at the time
    optimizer = torch.optim.Adam(actor.parameters(), lr=options.learning_rate)
    for iteration in range(options.iterations):
        groups = play(policy, env, options, iteration)
        if not groups:
            print("it always succeeds, or never: nothing to learn from; try more demos or std")
            return
        states, actions, old_log_prob, advantage = decisions(groups, options.algorithm)
        for _ in range(options.epochs):
            for rows in torch.randperm(len(states)).split(256):
                log_prob = actor.log_prob(states[rows], actions[rows])
                loss = clipped_loss(log_prob, old_log_prob[rows], advantage[rows], options.clip)
                step(optimizer, loss)


def evaluate(actor: Actor, options: Options, when: str) -> polyarm.Results:
    """Play the held-out episodes, without noise."""
    results = polyarm.evaluate(
        actor.policy(noisy=False), options.task, episodes=options.eval_episodes,
        num_envs=options.num_envs, suite_options={"max_steps": options.max_steps},
    )  # fmt: skip
    rate = results.micro
    interval = f"95% interval {rate.low:.1%} to {rate.high:.1%}"
    print(f"{when}: {rate.rate:.1%} of {rate.episodes} succeed ({interval})", flush=True)
    return results


def main(options: Options) -> None:
    """Clone, evaluate, fine-tune, evaluate, compare."""
    if min(options.demos, options.group_size - 1, options.seed + 1) < 1:
        sys.exit("give at least 1 demo, groups of at least 2, and a seed from 0 on")
    torch.set_num_threads(1)  # the network is small, and the envs need the cores
    torch.manual_seed(options.seed)
    actor = clone_expert(options)
    before = evaluate(actor, options, "before")
    with polyarm.make_vec(
        options.task, num_envs=options.num_envs, autoreset="disabled", max_steps=options.max_steps
    ) as env:
        finetune(actor, env, options)
    after = evaluate(actor, options, "after")
    print(f"A is before, B is after. {compare(before, after).verdict}")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        torch.save(actor.state_dict(), options.out)


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except KeyboardInterrupt:
        sys.exit(130)
    except polyarm.PolyarmError as error:
        sys.exit(str(error))

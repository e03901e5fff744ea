"""Proximal policy optimisation (Schulman et al., 2017), on one process or many.

An update plays ``horizon`` decisions in every env into the ring of the shared block, estimates
advantages (GAE) from the values of all its rows, and follows the clipped surrogate for a few epochs
of minibatches. A decision is a chunk of K actions: one choice, whose rewards are discounted per
step. All ranks hold the same weights: gradients are summed up over ranks, and divided by the number
of samples of all of them.
"""

from __future__ import annotations

import time
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.distributed.torchrun import ProcessGroup
from polyarm.errors import PolicyError
from polyarm.training.agent import Agent, AgentShape
from polyarm.training.devices import threads
from polyarm.training.options import TrainOptions, scheduled
from polyarm.training.play import Play, Steps
from polyarm.vector.tensors import import_torch, is_gpu

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Update:
    """One update of the policy, of all ranks together.

    Attributes:
        number: From 1 on.
        steps: Env steps so far; none of those that failed.
        errors: Episodes cut short by a failing env or worker so far.
        loss: What was minimised, on average over the minibatches; and its parts.
        policy_loss: The clipped surrogate.
        value_loss: Of the normalised values.
        entropy: Of a decision.
        kl: How far the policy has moved in this update, roughly.
        clipped: Share of the samples whose probability moved farther than is followed.
        grad_norm: Length of the gradients before they were shortened.
        explained: Share of the returns' variance that the critic had foreseen.
        reward: Mean reward of a step.
        episodes: Episodes that ended in this update.
        mean_return: Their mean undiscounted return; None without any.
        mean_length: Their mean number of steps.
        success_rate: Share of successes among them, where envs say so.
        eval_success: Success rate of the evaluation after this update, if there was one.
        eval_return: Its mean return.
        eval_errors: Its episodes that failed for other reasons, and are in neither.
        train_s: Seconds of training so far, evaluations included.
        steps_per_s: Env steps per second, learning included, of this update.
    """

    number: int
    steps: int
    errors: int
    loss: float
    policy_loss: float
    value_loss: float
    entropy: float
    kl: float
    clipped: float
    grad_norm: float
    explained: float
    reward: float
    episodes: int
    mean_return: float | None
    mean_length: float | None
    success_rate: float | None
    train_s: float
    steps_per_s: float
    eval_success: float | None = None
    eval_return: float | None = None
    eval_errors: int = 0


def advantages(steps: Steps, values: Array, gamma: float, gae_lambda: float) -> Array:
    """Generalised advantage estimates ``(T, N)`` of decisions of up to K steps.

    A decision that terminated its episode expects nothing more. One that was truncated expects the
    value of the row after it, which is the episode's last observation. So does one that is followed
    by an unusable decision: a failing env does not change what came before. Unusable ones get 0.

    Args:
        steps: What came of a rollout.
        values: Of every row, ``(T + 1, N)``.
        gamma: Discount per step.
        gae_lambda: Weight of what comes later, per decision.
    """
    earned = steps.rewards @ gamma ** np.arange(steps.rewards.shape[-1])
    discount = gamma**steps.steps
    surprise = earned + discount * ~steps.terminated * values[1:] - values[:-1]
    goes_on = gae_lambda * discount * ~(steps.terminated | steps.truncated)
    estimates: Array = np.zeros_like(surprise)
    following = np.zeros_like(surprise[0])
    for row in reversed(range(len(surprise))):
        following = np.where(steps.usable[row], surprise[row] + goes_on[row] * following, 0.0)
        estimates[row] = following
    return estimates


@dataclass(frozen=True, slots=True)
class Samples:
    """Decisions to learn from, tensors of B rows on the agent's device.

    Attributes:
        inputs: What was seen, as `Agent.inputs` gives it.
        chosen: What was chosen, ``(B, K)`` or ``(B, K, outputs)``.
        made: 1 for actions that were executed, 0 for those an episode's end cut off, ``(B, K)``.
        log_prob: Of what was executed, when it was chosen, ``(B,)``.
        advantage: Normalised, ``(B,)``.
        target: Normalised returns, ``(B,)``.
    """

    inputs: dict[str, Any]
    chosen: Any
    made: Any
    log_prob: Any
    advantage: Any
    target: Any

    def rows(self, index: Any) -> Samples:
        """Some of them."""
        return Samples(
            {key: value[index] for key, value in self.inputs.items()},
            self.chosen[index],
            self.made[index],
            self.log_prob[index],
            self.advantage[index],
            self.target[index],
        )


def losses(agent: Agent, samples: Samples, clip: float) -> tuple[Any, Any, Any, Any]:
    """What PPO minimises, summed up over the samples, before weighing.

    Returns:
        The clipped surrogate, the critic's squared error, the entropy, and figures (KL divergence,
        clipped samples) that no gradient follows.
    """
    torch = import_torch()
    described, values = agent.decide_and_judge(samples.inputs)
    moved = (agent.log_prob(described, samples.chosen) * samples.made).sum(-1) - samples.log_prob
    ratio = moved.exp()
    follow = torch.minimum(
        ratio * samples.advantage, ratio.clamp(1 - clip, 1 + clip) * samples.advantage
    )
    entropy = (agent.entropy(described) * samples.made).sum()
    value_loss = 0.5 * (values - samples.target).square().sum()
    with torch.no_grad():
        figures = torch.stack([(ratio - 1 - moved).sum(), ((ratio - 1).abs() > clip).sum()])
    return -follow.sum(), value_loss, entropy, figures


class Learner:
    """Plays, and learns from what comes of it.

    Args:
        options: How.
        play: The envs.
        group: All ranks.
        device: Where it computes.
        usual_threads: What PyTorch may use while the envs are at rest.

    Attributes:
        steps: Env steps of all ranks since the first update.
        errors: Episodes of all ranks that were cut short, since then.
    """

    def __init__(
        self,
        options: TrainOptions,
        play: Play,
        group: ProcessGroup,
        *,
        device: Any = "cpu",
        usual_threads: int = 1,
    ) -> None:
        torch = import_torch()
        self._options, self.play, self._group = options, play, group
        shape = AgentShape(
            play.sight, play.acts, options.action_chunk, options.train_hidden, options.first_std
        )
        self.agent = Agent(shape, seed=options.seed, device=device, amp=options.amp)
        if is_gpu(self.agent.device):
            play.envs.to_torch(self.agent.device)  # pins the ring, so that copies run at full speed
        group.broadcast([self.agent.weights])
        self.generator = torch.Generator()
        self.reseed(0)
        flat = torch.nn.Parameter(self.agent.weights)
        flat.grad = self.agent.gradients[:-1]
        self.optimizer = torch.optim.Adam([flat], lr=options.train_lr, eps=1e-5, fused=True)
        # Layers this small are not worth waiting for a second thread; convolutions are.
        self._threads = usual_threads if play.sight.pictures else 1
        self.steps = self.errors = 0

    def reseed(self, number: int) -> None:
        """Give this rank's noise and shuffling a new beginning."""
        words = [self._options.seed, self._group.rank.number, number]
        (word,) = np.random.SeedSequence(words).generate_state(1)
        self.generator.manual_seed(int(word))

    def state_dict(self) -> dict[str, Any]:
        """What all ranks share: how the agent is built, what it has learnt, the optimizer."""
        return {
            "agent": self.agent.shape.as_dict(),
            "learnt": self.agent.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counts": {"steps": self.steps, "errors": self.errors},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.agent.load_state_dict(state["learnt"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self.errors = state["counts"]["steps"], state["counts"]["errors"]

    def update(self, number: int) -> Update:
        """Play and learn once.

        Args:
            number: Which update, from 1 on.
        """
        began = time.perf_counter()
        steps, chosen = self._play()
        with threads(self._threads):
            samples, explained = self._prepare(steps, chosen)
            learnt = self._learn(samples, number)
            self.agent.states.update(self._seen(steps), self._group)
        return self._account(number, steps, learnt, explained, time.perf_counter() - began)

    def _play(self) -> tuple[Steps, Any]:
        """A rollout, and what was chosen in it, ``(T, N, K[, outputs])``."""
        torch = import_torch()
        agent, play = self.agent, self.play
        horizon, count = self._options.horizon, play.envs.num_envs
        ring = play.begin_rollout()
        noise = agent.noise((horizon, count), self.generator).to(agent.device)
        chosen = []
        with torch.inference_mode():
            for row in range(horizon):
                described = agent.decide(agent.inputs({key: ring[key][row] for key in ring}))
                chosen.append(agent.sample(described, noise[row]))
                play.step(agent.acts.to_env(chosen[-1].cpu().numpy()))
        return play.end_rollout(ring), torch.stack(chosen)

    def _prepare(self, steps: Steps, chosen: Any) -> tuple[Samples, float]:
        """Samples of the usable decisions, and the share of variance that values explain."""
        torch = import_torch()
        agent, options = self.agent, self._options
        inputs = agent.inputs({key: leaf.flatten(0, 1) for key, leaf in steps.leaves.items()})
        described, values = self._judge(inputs)
        worth = agent.to_returns(values).cpu().numpy().astype(np.float64)
        worth = worth.reshape(len(chosen) + 1, -1)
        estimates = advantages(steps, worth, options.gamma, options.gae_lambda)
        index = torch.from_numpy(np.flatnonzero(steps.usable))
        advantage = torch.from_numpy(estimates.reshape(-1))[index]
        returns = advantage + torch.from_numpy(worth[:-1].reshape(-1))[index]
        (mean, variance), (_, spread) = _moments([advantage, returns], self._group)
        agent.adapt_returns(returns, self._group)
        made = torch.arange(options.action_chunk) < torch.from_numpy(steps.steps)[..., None]
        made = made.flatten(0, 1)[index].to(agent.device, torch.float32)
        index = index.to(agent.device)
        chosen = chosen.flatten(0, 1)[index]
        samples = Samples(
            {key: leaf[index] for key, leaf in inputs.items()},
            chosen,
            made,
            (agent.log_prob(described[index], chosen) * made).sum(-1).detach(),
            ((advantage - mean) / (variance**0.5 + 1e-8)).to(agent.device, torch.float32),
            agent.returns.normalise(returns[:, None].to(agent.device))[:, 0],
        )
        return samples, 1.0 - variance / max(spread, 1e-12)

    def _judge(self, inputs: dict[str, Any]) -> tuple[Any, Any]:
        """What describes all decisions, and normalised values, in passes of a minibatch's size."""
        torch = import_torch()
        options, count = self._options, self.play.envs.num_envs
        size = -(-options.horizon * count // options.minibatches)
        rows = (options.horizon + 1) * count
        with torch.no_grad():
            parts = [
                self.agent.decide_and_judge(
                    {key: leaf[start : start + size] for key, leaf in inputs.items()}
                )
                for start in range(0, rows, size)
            ]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _learn(self, samples: Samples, number: int) -> Any:
        """Follow the gradients; gives figures summed up over samples, and how many there were."""
        torch = import_torch()
        options, agent = self._options, self.agent
        progress = (number - 1) / max(1, options.train_updates - 1)
        clip = scheduled(options.clip, options.clip_end, progress)
        bonus = scheduled(options.entropy, options.entropy_end, progress)
        for one in self.optimizer.param_groups:
            one["lr"] = scheduled(options.train_lr, options.last_lr, progress)
        figures = torch.zeros(8, dtype=torch.float64)
        for _ in range(options.epochs):
            order = torch.randperm(len(samples.target), generator=self.generator)
            for index in order.to(agent.device).tensor_split(options.minibatches):
                gradients = agent.gradients.zero_()
                policy, value, entropy, moved = losses(agent, samples.rows(index), clip)
                loss = policy + options.value_weight * value - bonus * entropy
                loss.backward()
                gradients[-1] = len(index)  # travels with them: ranks may differ in samples
                self._group.total([gradients])
                norm = self._follow(gradients, number)
                with torch.no_grad():
                    sums = torch.stack([loss, policy, value, entropy, *moved]).cpu().double()
                figures += torch.cat([sums, torch.tensor([len(index), 0.0])])
                figures[7] += norm
        return figures

    def _follow(self, gradients: Any, number: int) -> float:
        """Take a step along the gradients of all ranks; returns their length."""
        torch = import_torch()
        count = float(gradients[-1])
        if count == 0:  # no rank has data
            return 0.0
        mean = gradients[:-1].div_(count)
        norm = float(torch.linalg.vector_norm(mean))
        if not np.isfinite(norm):
            raise PolicyError(
                f"the gradients of update {number} are no finite numbers, so the weights were left"
                f" as they are; try a smaller train_lr, and look for huge rewards or observations"
            )
        if norm > self._options.max_grad_norm:
            mean.mul_(self._options.max_grad_norm / norm)
        self.optimizer.step()
        return norm

    def _seen(self, steps: Steps) -> Any:
        """All states of a rollout that are data, ``(n, size)``."""
        torch = import_torch()
        if "state" not in steps.leaves:
            return torch.zeros(0, 0)
        return steps.leaves["state"][:-1].flatten(0, 1)[np.flatnonzero(steps.usable)]

    def _account(
        self, number: int, steps: Steps, learnt: Any, explained: float, spent: float
    ) -> Update:
        torch = import_torch()
        options, tally = self._options, self.play.tally
        own = (
            steps.steps[steps.usable].sum(),
            steps.rewards[steps.usable].sum(),
            *astuple(tally),
        )
        sums = torch.tensor([float(one) for one in own], dtype=torch.float64)
        learnt[7] /= self._group.rank.world  # every rank has noted the same norms
        self._group.total([sums, learnt])
        made, rewards, episodes, returns, lengths, successes, judged, errors = sums.tolist()
        *losses, count, norms = learnt.tolist()
        loss, policy, value, entropy, kl, clipped = (one / max(1.0, count) for one in losses)
        self.steps += int(made)
        self.errors += int(errors)
        return Update(
            number=number,
            steps=self.steps,
            errors=self.errors,
            loss=loss,
            policy_loss=policy,
            value_loss=value,
            entropy=entropy,
            kl=kl,
            clipped=clipped,
            grad_norm=norms / (options.epochs * options.minibatches),
            explained=explained,
            reward=rewards / max(1.0, made),
            episodes=int(episodes),
            mean_return=returns / episodes if episodes else None,
            mean_length=lengths / episodes if episodes else None,
            success_rate=successes / judged if judged else None,
            train_s=spent,
            steps_per_s=made / spent,
        )


def _moments(rows: list[Any], group: ProcessGroup) -> list[tuple[float, float]]:
    """Mean and variance of each, over all ranks."""
    torch = import_torch()
    parts = [torch.tensor([float(len(rows[0]))]).double()]
    parts += [torch.stack([one.double().sum(), one.double().square().sum()]) for one in rows]
    sums = torch.cat(parts)
    group.total([sums])
    count, *rest = sums.tolist()
    count = max(1.0, count)
    means = [one / count for one in rest[::2]]
    squares = [one / count for one in rest[1::2]]
    return [(mean, max(0.0, square - mean**2)) for mean, square in zip(means, squares, strict=True)]

"""What a learner learns from is what it has played, in the terms in which it played it."""

import copy
from contextlib import ExitStack

import numpy as np
import pytest

from polyarm.distributed.ranks import Rank, Share
from polyarm.distributed.torchrun import ProcessGroup
from polyarm.training import ppo
from polyarm.training.agent import Agent
from polyarm.training.options import TrainOptions
from polyarm.training.play import Play
from polyarm.training.ppo import Learner, Samples, advantages, losses

torch = pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")

import stand_in_cuda  # noqa: E402  it imports torch

ALONE = ProcessGroup(Rank(0, 1))


def test_samples_are_the_decisions_that_were_made():
    """Chunks of 4 in episodes of 10 steps: some are cut short, and some rows only reset."""
    options = TrainOptions(
        task="toy/count-10", num_envs=3, num_workers=0, horizon=7, action_chunk=4, train_hidden=8,
        epochs=1, minibatches=2,
    )  # fmt: skip
    with Play(options, Share(ALONE.rank, (3,))) as play, torch.no_grad():
        play.begin()
        learner = Learner(options, play, ALONE)
        agent = learner.agent
        with torch.enable_grad():
            learner.update(1)  # moves the weights and the normalisers
        before = learner.generator.get_state()
        steps, chosen = learner._play()
        samples, _ = learner._prepare(steps, chosen)
        data = steps.usable.reshape(-1)
        assert samples.made.sum(1).tolist() == steps.steps.reshape(-1)[data].tolist()
        assert {2, 4} == set(samples.made.sum(1).tolist())
        # The noise between means and choices is the one drawn: both saw the same observations.
        learner.generator.set_state(before)
        noise = agent.noise(chosen.shape[:2], learner.generator).flatten(0, 1)[data]
        apart = (samples.chosen - agent.decide(samples.inputs)) / agent.module["log_std"][0].exp()
        assert torch.allclose(apart, noise, atol=1e-5)
        # Nothing was learnt yet: all probabilities are what they were.
        *_, figures = losses(agent, samples, clip=1e-4)
        assert figures.tolist() == pytest.approx([0, 0], abs=1e-5)
        # The scale of returns has moved, and with it the targets, but not what values mean.
        seen = {key: leaf.flatten(0, 1) for key, leaf in steps.leaves.items()}
        _, values = agent.decide_and_judge(agent.inputs(seen))
        worth = agent.to_returns(values).double().numpy().reshape(8, 3)
        estimates = advantages(steps, worth, options.gamma, options.gae_lambda)
    returns = (estimates + worth[:-1]).reshape(-1)[data]
    assert agent.to_returns(samples.target).numpy() == pytest.approx(returns, rel=1e-3)
    assert float(agent.returns.mean) == pytest.approx(np.mean(returns), rel=0.3)
    expected = estimates.reshape(-1)[data]
    expected = (expected - expected.mean()) / expected.std()
    assert samples.advantage.numpy() == pytest.approx(expected, abs=1e-3)


# An update, against the same written with PyTorch's own parts.

OPTIONS = {
    "task": "toy/count-10", "num_envs": 1, "num_workers": 0, "horizon": 4, "train_hidden": 8,
    "action_chunk": 2, "train_updates": 3, "epochs": 1, "minibatches": 1, "value_weight": 0.7,
    "train_lr": 3e-3, "train_lr_end": 1e-3, "clip": 0.3, "clip_end": 0.1, "entropy": 0.03,
    "entropy_end": 0.01,
}  # fmt: skip
HALFWAY = {"lr": 2e-3, "clip": 0.2, "entropy": 0.02}
"""The schedules in the second of three updates."""


@pytest.fixture
def make_learner():
    """Learners with the same weights, whose actions and values are not all alike."""
    with ExitStack() as stack:

        def make(**options):
            wanted = TrainOptions(**{**OPTIONS, **options})
            play = stack.enter_context(Play(wanted, Share(ALONE.rank, (1,))))
            learner = Learner(wanted, play, ALONE)
            random = torch.Generator().manual_seed(1)
            learner.agent.weights.normal_(0, 0.3, generator=random)
            return learner

        yield make


def some_samples(agent, count, seed=0):
    """Decisions of a policy that has moved since, some of them cut short."""
    random = torch.Generator().manual_seed(seed)
    inputs = {"state": torch.randn(count, agent.sight.state_size, generator=random)}
    with torch.no_grad():
        described = agent.decide(inputs)
        chosen = agent.sample(described, agent.noise((count,), random))
        made = (torch.rand(count, 2, generator=random) < torch.tensor([1.0, 0.7])).float()
        log_prob = (agent.log_prob(described, chosen) * made).sum(-1)
    log_prob += 0.2 * torch.randn(count, generator=random)
    return Samples(inputs, chosen, made, log_prob, *torch.randn(2, count, generator=random))


def written_out(module, samples, *, clip, entropy):
    """The loss of an update, on average over the samples."""
    states = samples.inputs["state"]
    means = module["actor"](states).reshape(samples.chosen.shape)
    known = torch.distributions.Normal(means, module["log_std"][0].exp().expand_as(means))
    made, advantage = samples.made, samples.advantage
    ratio = ((known.log_prob(samples.chosen).sum(-1) * made).sum(-1) - samples.log_prob).exp()
    assert 0 < int(((ratio - 1).abs() > clip).sum()) < len(ratio)
    surrogate = torch.minimum(ratio * advantage, ratio.clip(1 - clip, 1 + clip) * advantage)
    missed = (module["critic"](states)[:, 0] - samples.target) ** 2
    bonus = (known.entropy().sum(-1) * made).sum(-1)
    return (-surrogate + 0.7 * 0.5 * missed - entropy * bonus).mean()


@pytest.mark.parametrize(("longest", "shortened"), [(0.05, True), (1e9, False)])
def test_an_update_is_a_step_of_adam_along_the_mean_loss(make_learner, longest, shortened):
    learner = make_learner(max_grad_norm=longest)
    module = copy.deepcopy(learner.agent.module)
    adam = torch.optim.Adam(module.parameters(), lr=HALFWAY["lr"], eps=1e-5)
    # Adam divides by the size of earlier gradients: the second step shows how large both were.
    for count in (6, 60):
        samples = some_samples(learner.agent, count)
        figures = learner._learn(samples, 2)
        adam.zero_grad()
        loss = written_out(module, samples, clip=HALFWAY["clip"], entropy=HALFWAY["entropy"])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), longest)
        adam.step()
        assert bool(norm > longest) == shortened
        told = figures[[0, 7]].tolist()
        assert told == pytest.approx([loss.item() * count, norm.item()], rel=1e-4)
    expected = torch.cat([part.detach().reshape(-1) for part in module.parameters()])
    torch.testing.assert_close(learner.agent.weights, expected, rtol=1e-4, atol=1e-6)


class Beside(ProcessGroup):
    """One of two ranks, whose neighbour has these gradients."""

    def __init__(self, gradients):
        super().__init__(Rank(0, 2))
        self._gradients = gradients

    def total(self, tensors):
        (own,) = tensors
        own += self._gradients


def test_ranks_with_unlike_numbers_of_samples_learn_as_one_that_has_all(make_learner):
    one, other, both = make_learner(), make_learner(), make_learner()
    samples = some_samples(both.agent, 40)
    few, many = samples.rows(torch.arange(7)), samples.rows(torch.arange(7, 40))
    policy, value, entropy, _ = losses(other.agent, many, HALFWAY["clip"])
    (policy + 0.7 * value - HALFWAY["entropy"] * entropy).backward()
    other.agent.gradients[-1] = len(many.target)
    one._group = Beside(other.agent.gradients)
    one._learn(few, 2)
    both._learn(samples, 2)
    assert not torch.equal(both.agent.weights, other.agent.weights)
    torch.testing.assert_close(one.agent.weights, both.agent.weights, rtol=1e-5, atol=1e-7)


def test_states_are_normalised_by_those_that_belong_to_an_episode(make_learner, monkeypatch):
    learner = make_learner(task="toy/count-3", action_chunk=1, horizon=7)
    learner.play.begin()
    played = learner._play()
    monkeypatch.setattr(learner, "_play", lambda: played)
    learner.update(1)
    steps, _ = played
    usable = steps.usable[:, 0]
    assert usable.tolist() == [True, True, True, False, True, True, True]
    seen = steps.leaves["state"][:-1, 0].numpy()[usable]
    assert learner.agent.states.mean.numpy() == pytest.approx(seen.mean(0), rel=1e-6)


@pytest.mark.parametrize("amp", [True, False])
def test_where_and_how_precisely_networks_compute_is_told_to_the_agent(monkeypatch, amp):
    told = {}

    def agent(shape, *, seed, **rest):
        told.update(rest)
        return Agent(shape, seed=seed)

    monkeypatch.setattr(ppo, "Agent", agent)
    options = TrainOptions(task="toy/count-10", num_workers=0, amp=amp)
    with Play(options, Share(ALONE.rank, (1,))) as play:
        Learner(options, play, ALONE, device="cuda:1")
    assert told == {"device": "cuda:1", "amp": amp}


def test_a_gpu_reads_the_ring_from_pinned_memory(make_learner, monkeypatch):
    cuda = stand_in_cuda.install(monkeypatch)
    monkeypatch.setattr(ppo, "is_gpu", lambda device: True)
    learner = make_learner(cameras=("front",), image_size=(8, 8))
    (nbytes,) = cuda.pinned.values()
    ring = learner.play.envs.history()["obs"]
    assert nbytes >= ring["pixels/front"].nbytes + ring["state"].nbytes
    learner.play.begin()
    learner.update(1)
    assert cuda.calls == 1
    learner.play.close()
    assert not cuda.pinned

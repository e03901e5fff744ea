"""What a learner learns from is what it has played, in the terms in which it played it."""

import numpy as np
import pytest

from polyarm.distributed.ranks import Rank, Share
from polyarm.distributed.torchrun import ProcessGroup
from polyarm.training.options import TrainOptions
from polyarm.training.play import Play
from polyarm.training.ppo import Learner, advantages, losses

torch = pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")


def test_samples_are_the_decisions_that_were_made():
    """Chunks of 4 in episodes of 10 steps: some are cut short, and some rows only reset."""
    options = TrainOptions(
        task="toy/count-10", num_envs=3, num_workers=0, horizon=7, action_chunk=4, train_hidden=8,
        epochs=1, minibatches=2,
    )  # fmt: skip
    rank = Rank(0, 1)
    with Play(options, Share(rank, (3,))) as play, torch.no_grad():
        play.begin()
        learner = Learner(options, play, ProcessGroup(rank))
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

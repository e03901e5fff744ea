"""Actor, critic and the loss are what their formulas say."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from polyarm.distributed.ranks import Rank
from polyarm.distributed.torchrun import ProcessGroup
from polyarm.training.agent import Agent, AgentShape
from polyarm.training.ppo import Samples, losses
from polyarm.training.spaces import Acts, Sight

torch = pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")

ALONE = ProcessGroup(Rank(0, 1))
REAL, CHOICE = Box(-2, 2, (3,), np.float32), Discrete(4)


def agent(actions, chunk=2, seed=0, **options):
    sight = Sight.of(Dict({"state": Box(-1, 1, (5,))}))
    return Agent(AgentShape(sight, Acts.of(actions), chunk, 8), seed=seed, **options)


def samples(one, count=6, seed=0):
    """Decisions of a slightly different policy, some of them cut short."""
    random = torch.Generator().manual_seed(seed)
    inputs = {"state": torch.randn(count, 5, generator=random)}
    described = one.decide(inputs).detach()
    chosen = one.sample(described, one.noise((count,), random)).detach()
    made = (torch.arange(one.chunk) < torch.tensor([[2], [1], [2], [1], [2], [2]])).float()
    old = (one.log_prob(described, chosen) * made).sum(-1).detach()
    old = old + 0.3 * torch.randn(count, generator=random)  # some ratios are clipped
    advantage, target = torch.randn(2, count, generator=random)
    return Samples(inputs, chosen, made, old, advantage, target)


def reference_distribution(one, described):
    if one.acts.discrete:
        return torch.distributions.Categorical(logits=described)
    scale = one.module["log_std"][0].exp().expand_as(described)
    return torch.distributions.Independent(torch.distributions.Normal(described, scale), 1)


@pytest.mark.parametrize("actions", [REAL, CHOICE], ids=["real", "choice"])
def test_log_probabilities_and_entropies_are_those_of_the_distribution(actions):
    one = agent(actions)
    described = torch.randn(6, 2, one.acts.outputs)
    chosen = one.sample(described, one.noise((6,), torch.Generator().manual_seed(1)))
    known = reference_distribution(one, described)
    torch.testing.assert_close(one.log_prob(described, chosen), known.log_prob(chosen))
    torch.testing.assert_close(one.entropy(described), known.entropy())


def test_choices_are_drawn_as_often_as_they_are_likely():
    one = agent(CHOICE, chunk=1)
    likely = torch.tensor([0.1, 0.2, 0.3, 0.4])
    noise = one.noise((40_000,), torch.Generator().manual_seed(0))
    drawn = one.sample(likely.log().expand(40_000, 1, 4), noise)
    shares = torch.bincount(drawn[:, 0], minlength=4) / 40_000
    assert torch.allclose(shares, likely, atol=0.01)


@pytest.mark.parametrize("actions", [REAL, CHOICE], ids=["real", "choice"])
def test_the_gradient_is_that_of_the_surrogate_written_out(actions):
    one, clip = agent(actions), 0.2
    data = samples(one)
    policy, value, entropy, figures = losses(one, data, clip)
    (policy + 0.5 * value - 0.01 * entropy).backward()

    described = one.module["actor"](data.inputs["state"]).reshape(6, 2, -1)
    known = reference_distribution(one, described)
    total, clipped = 0.0, 0
    for row in range(6):
        # A chunk's probability is that of the actions that were executed.
        ran = int(data.made[row].sum())
        ratio = (known.log_prob(data.chosen)[row, :ran].sum() - data.log_prob[row]).exp()
        gain = min(ratio * data.advantage[row], ratio.clip(0.8, 1.2) * data.advantage[row])
        judged = one.module["critic"](data.inputs["state"][row])[0]
        error = (judged - data.target[row]) ** 2 / 2
        total = total - gain + 0.5 * error - 0.01 * known.entropy()[row, :ran].sum()
        clipped += int(abs(float(ratio.detach()) - 1) > clip)
    assert 0 < clipped < 6
    assert int(figures[1]) == clipped
    expected = torch.autograd.grad(total, list(one.module.parameters()))
    flat = torch.cat([part.reshape(-1) for part in expected])
    torch.testing.assert_close(one.gradients[:-1], flat, rtol=1e-4, atol=1e-5)


def test_weights_and_their_gradients_lie_in_one_tensor():
    one = agent(REAL)
    one.weights.zero_()
    assert all(float(part.detach().abs().sum()) == 0 for part in one.module.parameters())
    assert len(one.gradients) == len(one.weights) + 1


def test_what_the_critic_expects_outlives_a_new_scale():
    one = agent(REAL)
    inputs = {"state": torch.randn(7, 5)}
    one.adapt_returns(torch.randn(50) * 3 + 1, ALONE)
    before = one.to_returns(one.decide_and_judge(inputs)[1])
    one.adapt_returns(torch.randn(50) * 500 - 2000, ALONE)
    after = one.to_returns(one.decide_and_judge(inputs)[1])
    torch.testing.assert_close(before, after, rtol=1e-3, atol=1e-2)
    assert float(one.returns.std) > 100


@pytest.mark.parametrize("size", [(8, 8), (64, 48)])
def test_frames_of_any_size_are_seen_beside_the_state(size):
    space = Dict({"state": Box(-1, 1, (2,)), "pixels/front": Box(0, 255, (*size, 3), np.uint8)})
    one = Agent(AgentShape(Sight.of(space), Acts.of(REAL), hidden=8))
    leaves = {
        "state": torch.zeros(2, 2),
        "pixels/front": torch.zeros(2, *size, 3, dtype=torch.uint8),
    }
    dark = one.decide(one.inputs(leaves))
    leaves["pixels/front"][1] = 255
    mixed = one.decide(one.inputs(leaves))
    assert torch.equal(dark[0], mixed[0])
    assert not torch.equal(dark[1], mixed[1])
    mixed.sum().backward()
    assert float(one.module["eyes"][0][0].weight.grad.abs().sum()) > 0


def test_in_bfloat16_only_the_networks_compute():
    """As on a GPU, where it is the default."""
    one = agent(REAL)
    inputs = {"state": torch.randn(6, 5)}
    exact, _ = one.decide_and_judge(inputs)
    assert not one._amp  # there is no GPU
    one._amp = True
    rough, values = one.decide_and_judge(inputs)
    assert rough.dtype == values.dtype == torch.float32
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=0.1, atol=1e-2)
    losses(one, samples(one), 0.2)[0].backward()
    assert one.gradients.dtype == torch.float32
    assert float(one.gradients.abs().sum()) > 0


def test_a_seed_gives_the_same_weights_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(agent(REAL, seed=3).weights, agent(REAL, seed=3).weights)
    assert not torch.equal(agent(REAL, seed=3).weights, agent(REAL, seed=4).weights)
    assert torch.equal(torch.rand(3), expected)

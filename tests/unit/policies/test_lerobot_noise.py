"""Draws of a model are answered row by row, from the episodes' generators."""

import numpy as np
import pytest
import torch

from polyarm.policies.lerobot_noise import NoiseOfEpisodes, episode_noise

CPU = torch.device("cpu")

DRAWS = {
    "randn": lambda rows: torch.randn(rows, 3),
    "randn of a tuple": lambda rows: torch.randn((rows, 3), generator=None),
    "randn_like": lambda rows: torch.randn_like(torch.zeros(rows, 3)),
    "normal of a size": lambda rows: torch.normal(mean=2.0, std=3.0, size=(rows, 3)),
    "normal of tensors": lambda rows: torch.normal(torch.zeros(rows, 3), torch.ones(rows, 3)),
    "rand": lambda rows: torch.rand(rows, 3),
    "rand_like": lambda rows: torch.rand_like(torch.zeros(rows, 3)),
    "multinomial": lambda rows: torch.multinomial(torch.ones(rows, 1000), 1),
    "several rows per episode": lambda rows: torch.randn(rows * 2, 3).view(rows, 2, 3),
    "half precision": lambda rows: torch.randn(rows, 3, dtype=torch.bfloat16).float(),
}


def generators(rows):
    return [np.random.default_rng([7, row]) for row in rows]


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_row_gets_the_same_noise_in_any_batch(draw):
    with episode_noise(generators([0, 1, 2]), CPU):
        together = draw(3), draw(3)
    for row in range(3):
        with episode_noise(generators([row]), CPU):
            alone = draw(1), draw(1)
        assert torch.equal(together[0][row], alone[0][0])
        assert torch.equal(together[1][row], alone[1][0])
    assert not torch.equal(*together)
    assert not torch.equal(together[0][0], together[0][1])


def test_rows_that_are_drawn_for_while_others_go_on_are_not_changed_later():
    """A model that samples tokens draws for all rows until the last one has come to its end."""

    def decided(rows, lengths):
        own, noise = generators(rows), []
        for length in lengths:
            with episode_noise(own, CPU):
                noise.append(torch.stack([torch.rand(len(rows), 3) for _ in range(length)]))
        return noise

    alone, beside = decided([0], [1, 2]), decided([0, 1], [5, 2])
    assert torch.equal(alone[0][0, 0], beside[0][0, 0])
    assert torch.equal(alone[1][:, 0], beside[1][:, 0])


def test_noise_has_the_distribution_that_was_asked_for():
    with episode_noise(generators([0, 1]), CPU):
        normal = torch.normal(mean=2.0, std=3.0, size=(2, 20000))
        uniform = torch.rand(2, 20000)
        chosen = torch.multinomial(torch.tensor([[1.0, 0.0, 3.0]]).repeat(20000, 1), 1)
    assert normal.mean().item() == pytest.approx(2.0, abs=0.1)
    assert normal.std().item() == pytest.approx(3.0, abs=0.1)
    assert 0 <= uniform.min() < uniform.max() < 1
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.02)
    counts = torch.bincount(chosen.flatten(), minlength=3) / 20000
    np.testing.assert_allclose(counts, [0.25, 0.0, 0.75], atol=0.02)


def test_other_draws_are_seeded_for_this_time_only():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    with episode_noise(generators([0]), CPU):
        first = torch.randint(0, 2**30, (3,)), torch.rand([])
    assert torch.equal(torch.rand(1), expected)
    with episode_noise(generators([0]), CPU):
        again = torch.randint(0, 2**30, (3,)), torch.rand([])
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


def test_a_generator_of_the_models_own_is_left_alone():
    expected = torch.randn(2, generator=torch.Generator().manual_seed(3))
    with episode_noise(generators([0, 1]), CPU):
        assert torch.equal(torch.randn(2, generator=torch.Generator().manual_seed(3)), expected)


def test_a_model_that_draws_nothing_is_left_alone():
    asked = []

    def model():
        asked.append(torch.overrides._is_torch_function_mode_enabled())
        return torch.ones(2)

    own = generators([0, 1])
    before = [one.bit_generator.state for one in own]
    noise = NoiseOfEpisodes(CPU)
    for _ in range(3):
        noise.ask(model, own)
    assert asked == [False] * 3
    assert [one.bit_generator.state for one in own] == before


def test_a_model_that_draws_later_on_gets_the_noise_of_its_episodes_from_then_on():
    noise, plain = NoiseOfEpisodes(CPU), torch.get_rng_state()
    noise.ask(lambda: torch.ones(2), generators([0, 1]))
    first = noise.ask(lambda: torch.randn(2, 3), generators([0, 1]))
    other = noise.ask(lambda: torch.randn(2, 3), generators([1, 0]))
    assert torch.equal(first, other.flip(0))
    assert torch.equal(torch.get_rng_state(), plain)

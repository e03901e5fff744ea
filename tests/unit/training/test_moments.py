"""Running moments are those of all rows together, whatever batches and ranks they came in."""

import numpy as np
import pytest

from polyarm.distributed.ranks import Rank
from polyarm.distributed.torchrun import ProcessGroup
from polyarm.training.moments import RunningMoments

torch = pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")

ALONE = ProcessGroup(Rank(0, 1))


class TwoRanks(ProcessGroup):
    """The other rank has seen these rows, of which a sum is made as ours is."""

    def __init__(self, other):
        super().__init__(Rank(0, 2))
        self._other = other.double()

    def total(self, tensors):
        for tensor in tensors:
            one = torch.tensor([float(len(self._other))]).double()
            tensor += torch.cat([one, self._other.sum(0), (self._other**2).sum(0)])


def rows(count, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(3, 5, (count, 2)))


def test_batches_of_any_size_come_to_the_moments_of_all_rows():
    moments = RunningMoments(2)
    data = rows(100)
    for part in (data[:1], data[1:1], data[1:40], data[40:]):
        moments.update(part, ALONE)
    assert torch.allclose(moments.mean.double(), data.mean(0), atol=1e-6)
    assert torch.allclose(moments.std.double(), data.std(0, correction=0), atol=1e-5)
    normalised = moments.normalise(data)
    assert normalised.dtype == torch.float32
    assert abs(float(normalised.mean())) < 1e-5


def test_ranks_with_other_numbers_of_rows_agree():
    data = rows(30)
    together, shared = RunningMoments(2), RunningMoments(2)
    together.update(data, ALONE)
    shared.update(data[:7], TwoRanks(data[7:]))
    assert torch.allclose(shared.mean, together.mean)
    assert torch.allclose(shared.std, together.std)


def test_no_rows_at_all_change_nothing():
    moments = RunningMoments(2)
    moments.update(rows(10), ALONE)
    before = moments.mean.clone()
    moments.update(rows(0), ALONE)
    assert torch.equal(moments.mean, before)


def test_a_number_that_never_changes_is_normalised_to_zero():
    moments = RunningMoments(1)
    moments.update(torch.full((50, 1), 0.6), ALONE)
    assert float(moments.normalise(torch.tensor([[0.6]])).abs()) < 1e-3


def test_those_that_forget_follow_what_is_new():
    forgetful, faithful = RunningMoments(1, forget=0.5), RunningMoments(1)
    for value in (0.0, 10.0, 10.0, 10.0, 10.0, 10.0):
        batch = torch.full((10, 1), value)
        forgetful.update(batch, ALONE)
        faithful.update(batch, ALONE)
    assert float(forgetful.mean) > 9.6
    assert float(faithful.mean) == pytest.approx(50 / 6)


def test_they_go_on_from_what_was_kept():
    first, second = RunningMoments(2), RunningMoments(2)
    first.update(rows(10), ALONE)
    second.load_state_dict(first.state_dict())
    for moments in (first, second):
        moments.update(rows(5, seed=1), ALONE)
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.std, second.std)

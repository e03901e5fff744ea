"""Where ranks compute, and what they refuse."""

from types import SimpleNamespace

import pytest

from polyarm.distributed.ranks import Rank
from polyarm.distributed.torchrun import ProcessGroup
from polyarm.errors import InvalidCall
from polyarm.training import devices

torch = pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")


@pytest.fixture
def check(monkeypatch):
    """What the first of several ranks finds, whose GPUs these are."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: SimpleNamespace(uuid="a"))

    def check(device, *others):
        group = ProcessGroup(Rank(0, 1 + len(others)))
        monkeypatch.setattr(group, "gather", lambda own: [own, *others])
        devices.require_gpus_apart(torch.device(device), group)

    return check


def test_ranks_that_share_a_gpu_are_refused_by_all_of_them(check):
    for others in (["a"], ["b", "b"]):
        with pytest.raises(InvalidCall, match=rf"{1 + len(others)} ranks compute on .* GPU"):
            check("cuda:0", *others)


def test_ranks_of_which_only_some_have_a_gpu_are_refused_by_all_of_them(check):
    for device, other in (("cuda:0", None), ("cpu", "b")):
        with pytest.raises(InvalidCall, match="1 of 2 ranks compute on a GPU"):
            check(device, other)


def test_ranks_with_a_gpu_each_and_those_without_any_are_not(check):
    check("cuda:0", "b", "c")
    check("cpu", None, None)

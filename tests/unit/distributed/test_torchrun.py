"""The group of a job's processes: who has left it is noticed, and it leaves nothing behind."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from launching import Command, srun

from polyarm.distributed import torchrun
from polyarm.distributed.ranks import Rank
from polyarm.errors import PolicyError, RankLost, StoppedEarly

pytest.importorskip("torch")

RANK = """
import os
from pathlib import Path

from polyarm.distributed import slurm
from polyarm.distributed.ranks import Rank
from polyarm.distributed.torchrun import process_group

slurm.say_where_to_meet()
rank = Rank.current()
with process_group(rank) as group:
    import torch

    # The first step of an optimiser loads a third of torch, parts that keep the group among them.
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1)).sum().backward()
    optimizer.step()
    assert group.gather(rank.number) == [0, 1]
tasks = Path("/proc/self/task").iterdir()
print([name for task in tasks if "gloo" in (name := (task / "comm").read_text())])
"""


def test_no_thread_of_a_group_outlives_it(tmp_path):
    """One that did would abort the process, sometimes, in the midst of the interpreter's end."""
    (tmp_path / "one_rank.py").write_text(RANK)
    with ExitStack() as stack:
        each = (Command(["one_rank"], variables, tmp_path) for variables in srun(2))
        for rank in [stack.enter_context(one) for one in each]:
            code, out, err = rank.end()
            assert (code, out) == (0, "[]\n"), err


DESERTED = """
import os

from polyarm.distributed import slurm
from polyarm.distributed.ranks import Rank
from polyarm.distributed.torchrun import process_group
from polyarm.errors import RankLost

slurm.say_where_to_meet()
rank = Rank.current()
with process_group(rank) as group:
    import torch

    def expect_lost(call):
        try:
            call()
        except RankLost as error:
            print(error)

    group.gather(None)
    if rank.leads:
        os._exit(0)
    expect_lost(lambda: group.total([torch.ones(3)]))
    expect_lost(lambda: group.gather(None))
    expect_lost(lambda: group.broadcast([torch.ones(3)]))
"""


def test_a_rank_that_has_ended_is_told_as_such_to_the_others(tmp_path):
    (tmp_path / "deserted.py").write_text(DESERTED)
    with ExitStack() as stack:
        each = (Command(["deserted"], variables, tmp_path) for variables in srun(2))
        first, second = [stack.enter_context(one) for one in each]
        assert first.end()[0] == 0
        code, out, err = second.end()
    assert code == 0, err
    lost = "another rank has ended, or does not answer any more; look for what it has said ("
    assert [line.startswith(lost) for line in out.splitlines()] == [True] * 3
    assert ".cc" not in out


def test_tensors_of_gpus_travel_in_a_group_of_their_own(monkeypatch):
    """By a stand-in: there is a GPU for each rank on no machine that runs this."""
    told = []
    stand_in = SimpleNamespace(
        new_group=lambda **how: told.append(how["backend"]) or "gpus",
        destroy_process_group=lambda group: told.append(f"no more {group}"),
        all_reduce=lambda tensor, group: told.append(group),
        broadcast=lambda tensor, src, group: told.append(group),
    )
    monkeypatch.setattr(torchrun, "_distributed", lambda: stand_in)
    on_gpu, on_cpu = SimpleNamespace(is_cuda=True), SimpleNamespace(is_cuda=False)
    group = torchrun.ProcessGroup(Rank(0, 2))
    with group.over_gpus():
        group.total([on_gpu, on_cpu])
        group.broadcast([on_gpu, on_cpu])
    assert told == ["nccl", "gpus", None, "gpus", None, "no more gpus"]


@pytest.mark.parametrize(
    ("said", "raised"),
    [((False, "no room"), "rank 1 could not go on: no room"), ((True, "stopped"), "stopped")],
)
def test_what_one_rank_cannot_do_none_goes_on_from(monkeypatch, said, raised):
    group = torchrun.ProcessGroup(Rank(0, 2))
    monkeypatch.setattr(group, "gather", lambda own: [own, None])
    with group.together():
        pass
    with pytest.raises(PolicyError, match="ours"), group.together():
        raise PolicyError("ours")
    monkeypatch.setattr(group, "gather", lambda own: [own, said])
    with pytest.raises(StoppedEarly if said[0] else RankLost, match=raised), group.together():
        pass


def errors_of_its_own():
    import torch
    from torch.distributed import DistBackendError

    return [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("Distributed package doesn't have NCCL built in"),
        NotImplementedError("Could not run 'c10d::allreduce_' with arguments from the 'X' backend"),
        DistBackendError(
            "NCCL error in: ProcessGroupNCCL.cpp:1, unhandled cuda error, NCCL version 2.27\n"
            "ncclUnhandledCudaError: Call to CUDA function failed."
        ),
    ]


def errors_of_others():
    from torch.distributed import DistBackendError, DistNetworkError

    return [
        RuntimeError("[/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:30: reset by peer"),
        RuntimeError(
            "[/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms for recv"
        ),
        RuntimeError("Application timeout caused pair closure"),
        DistNetworkError("Broken pipe"),
        DistBackendError(
            "NCCL error in: ProcessGroupNCCL.cpp:1, remote process exited, NCCL version 2.27\n"
            "ncclRemoteError: A call failed possibly due to a network error"
        ),
    ]


def test_only_what_other_ranks_did_is_called_their_loss(monkeypatch):
    """Texts are those of PyTorch 2.13; those of GPUs are written after its sources."""
    raising = []

    def all_reduce(tensor, group):
        raise raising[-1]

    monkeypatch.setattr(torchrun, "_distributed", lambda: SimpleNamespace(all_reduce=all_reduce))
    group, tensor = torchrun.ProcessGroup(Rank(0, 2)), SimpleNamespace(is_cuda=False)
    for error in errors_of_its_own():
        raising.append(error)
        with pytest.raises(type(error)) as raised:
            group.total([tensor])
        assert raised.value is error
    for error in errors_of_others():
        raising.append(error)
        with pytest.raises(RankLost, match="another rank has ended"):
            group.total([tensor])

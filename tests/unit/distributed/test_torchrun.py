"""The group of a job's processes leaves nothing behind."""

from contextlib import ExitStack

import pytest
from launching import Command, srun

pytest.importorskip("torch")

RANK = """
import os
from pathlib import Path

from polyarm.distributed import slurm
from polyarm.distributed.ranks import Rank
from polyarm.distributed.torchrun import process_group

slurm.meet()
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

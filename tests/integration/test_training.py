"""Trainings with real envs and real ranks: they learn, agree, and go on exactly where they were."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import launching
import pytest

from polyarm.training.options import TrainOptions
from polyarm.training.run import Stop, train

torch = pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")

TWO_RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]

SETTINGS = {
    "task": "toy/count-10,toy/count-3", "num_envs_total": 5, "num_workers": 1, "horizon": 7,
    "train_hidden": 8, "epochs": 2, "minibatches": 3, "eval_every": 2, "eval_episodes": 1,
    "train_lr_end": None,
}  # fmt: skip

RANK = """
import json, os, sys
from pathlib import Path
from polyarm.distributed.ranks import Rank
from polyarm.distributed.torchrun import process_group
from polyarm.policies.torch import weights_digest
from polyarm.training.options import TrainOptions
from polyarm.training.run import train

rank = os.environ["RANK"]
folder = Path(sys.argv[1], f"node{rank}")  # as if they shared no file system
settings = json.loads(sys.argv[2])
found = []
with process_group(Rank.current()):  # for all four of them
    for out, updates in (("whole", 4), ("cut", 2), ("cut", 4), ("alone", 3)):
        done = train(TrainOptions(**settings, train_updates=updates, out=str(folder / out)))
        state = done.policy._agent.state_dict()
        digest = weights_digest({**state["weights"], "mean": state["states"]["mean"]})
        figures = [(update.steps, update.loss, update.eval_return) for update in done.updates]
        found.append([digest, done.resumed, done.exact, figures])
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(found))
"""


def run(command: list[str], timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


def test_ranks_with_uneven_envs_hold_the_same_weights_and_resume_exactly_or_in_other_numbers(
    tmp_path: Path,
):
    alone = {**SETTINGS, "out": str(tmp_path / "node0" / "alone")}
    begun = train(TrainOptions(**alone, train_updates=2))
    script = tmp_path / "rank.py"
    script.write_text(textwrap.dedent(RANK))
    run([*TWO_RANKS, str(script), str(tmp_path), json.dumps(SETTINGS)])
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second  # weights, normalisers and figures, to the bit
    whole, before, after, joined = first
    assert whole[0] == after[0] != before[0]
    resumed = [tuple(one[1:3]) for one in first]
    assert resumed == [(0, True), (0, True), (2, True), (2, False)]
    assert before[3] + after[3] == whole[3]
    # 5 envs, 7 decisions each, of which some were resets: both ranks' steps are counted.
    assert 5 * 7 * 4 * 0.7 < whole[3][-1][0] < 5 * 7 * 4
    # One process, two ranks, one process again: with new episodes, but all that was learnt.
    (third,) = joined[3]
    assert begun.steps < third[0] <= begun.steps + 5 * 7
    left = train(TrainOptions(**alone, train_updates=4))
    assert (left.resumed, left.exact, len(left.updates)) == (3, False, 1)
    assert third[0] < left.steps <= third[0] + 5 * 7
    assert not (tmp_path / "node1").exists()


def test_a_signal_to_one_rank_ends_both_with_the_code_that_queues_them_again(tmp_path: Path):
    words = [
        "train", "--task", "toy/count-10", "--num-envs", "2", "--num-workers", "0", "--out", "run",
        "--horizon", "16", "--train-hidden", "8", "--train-updates", "1000000",
        "--eval-every", "0", "--checkpoint-every", "0",
    ]  # fmt: skip
    with launching.side_by_side(launching.srun(2), *words, folder=tmp_path) as (first, second):
        assert first.stdout.readline().startswith("update=1/")
        second.send_signal(signal.SIGUSR1)
        ends = [rank.end() for rank in (first, second)]
    assert [code for code, _, _ in ends] == [75, 75], ends
    assert (tmp_path / "run" / "checkpoint.pt").exists()


@pytest.mark.timeout(60)
def test_cartpole_is_learnt():
    """From 20 steps to the whole 500, within 25,000 steps."""
    options = TrainOptions(
        task="gym/CartPole-v1",
        num_workers=2,
        train_updates=12,
        train_lr=1e-3,
        eval_every=12,
        eval_episodes=8,
    )
    done = train(options)
    assert done.updates[0].mean_return < 60
    assert done.updates[-1].eval_return >= 475


@pytest.mark.parametrize("chunk", [1, 4])
def test_meta_world_goes_on_to_the_bit_after_an_interruption(tmp_path: Path, chunk: int):
    settings = {
        "num_envs": 2,
        "horizon": 50 // chunk,  # episodes of 70 steps go on over the ends of rollouts
        "action_chunk": chunk,
        "max_steps": 70,
        "train_updates": 4,
        "train_hidden": 16,
        "eval_every": 0,
    }
    whole = train(TrainOptions(**settings))
    stop = Stop()
    out = {"out": str(tmp_path)}
    first = train(TrainOptions(**settings, **out), lambda update: stop(), stop=stop)
    assert len(first.updates) == 1
    second = train(TrainOptions(**settings, **out))
    assert (second.resumed, second.exact) == (1, True)
    assert torch.equal(second.policy._agent.weights, whole.policy._agent.weights)


@pytest.mark.usefixtures("rlbench")
def test_two_ranks_train_over_rlbench(tmp_path: Path):
    out = str(tmp_path / "run")
    command = [
        *TWO_RANKS, "-m", "polyarm", "train", "--task", "rlbench/reach_target,rlbench/open_drawer",
        "--num-envs-total", "3", "--horizon", "6", "--action-chunk", "4", "--train-hidden", "16",
        "--train-updates", "2", "--eval-every", "2", "--eval-episodes", "2", "--max-steps", "20",
        "--fast", "--suite-options", "on_invalid_action=skip", "--out", out,
    ]  # fmt: skip
    done = run(command)
    assert "envs_per_rank=[2, 1]" in done.stderr
    first, second, summary, _ = done.stdout.splitlines()  # one rank speaks for both
    assert first.startswith("update=1/2 ")
    assert "| held-out: success " in second
    assert summary.startswith("2 updates, ")
    assert "error" not in summary
    again = run([*command, "--train-updates", "3"])
    assert "went on from update 2, exactly" in again.stdout

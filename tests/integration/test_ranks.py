"""Commands under a real torchrun: one table of all ranks, and the results of a single process."""

from __future__ import annotations

import json
import subprocess
import sys

import launching
import pytest

import polyarm
from polyarm import registry
from polyarm.report.results import Results

torch = pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")

MT10 = registry.load("metaworld").sets()["mt10"]
TASKS = "metaworld/reach-v3,metaworld/drawer-open-v3,metaworld/button-press-v3"


def scores(episodes):
    """By episode, all that a score is made of."""
    return {
        each.key: (each.outcome, each.steps, each.total_reward, each.action_hash)
        for each in episodes
    }


def test_a_benchmark_of_two_ranks_prints_one_table(tmp_path):
    words = ["bench", "--task", "toy/count-10", "--num-envs-total", "5", "--max-steps", "40"]
    with launching.torchrun(2, *words, "--json", folder=tmp_path) as launcher:
        code, out, err = launcher.end()
    assert code == 0, err
    assert (
        err.count("envs_per_rank=[3, 2]") == err.count("bench toy/count-10: 2 ranks, 5 envs") == 1
    )
    assert err.count("latency p50") == err.count("start-up  ") == err.count("fastest") == 1
    together = json.loads(out)
    assert together["envs_per_rank"] == [one["options"]["num_envs"] for one in together["ranks"]]
    assert together["env_steps"] == sum(one["env_steps"] for one in together["ranks"]) >= 5 * 40
    assert together["errors"] == 0


def test_a_benchmark_of_two_ranks_plays_all_tasks_of_a_set(tmp_path):
    words = ["bench", "--task", "metaworld/mt10", "--num-envs-total", "10", "--max-steps", "2"]
    with launching.torchrun(2, *words, "--json", folder=tmp_path) as launcher:
        code, out, err = launcher.end()
    assert code == 0, err
    played = [[one["task"] for one in rank["provenance"]] for rank in json.loads(out)["ranks"]]
    assert len(played[0]) == len(played[1]) == 5
    assert set(played[0] + played[1]) == set(MT10)


def test_an_evaluation_of_two_ranks_has_the_results_of_a_single_process(tmp_path):
    words = ["eval", "--policy", "expert", "--task", TASKS, "--episodes", "5", "--out", "run"]
    with launching.torchrun(2, *words, "--num-envs-total", "3", folder=tmp_path) as launcher:
        code, out, err = launcher.end()
    assert code == 0, err
    assert err.count("envs_per_rank=[2, 1]") == 1
    assert "15/15 episodes" in err
    assert out.count("report: run/report.html") == 1
    alone = polyarm.evaluate("expert", TASKS.split(","), episodes=5, num_envs=2)
    results = Results.read(tmp_path / "run")
    assert scores(results.episodes) == scores(alone.episodes)
    assert not results.missing
    assert results.wall["total"] > results.wall["sim"] > 0
    launching.assert_each_once(tmp_path / "run", 15)
    assert all(launching.journals(tmp_path / "run").values()), "both have played"


def test_of_two_ranks_one_finds_nothing_to_play(tmp_path):
    words = ["eval", "--policy", "zero", "--task", "toy/count-3", "--episodes", "1", "--out", "run"]
    with launching.torchrun(2, *words, "--num-envs", "1", folder=tmp_path) as launcher:
        code, out, err = launcher.end()
    assert code == 0, err
    assert out.count("report: run/report.html") == 1
    launching.assert_each_once(tmp_path / "run", 1)
    assert len(Results.read(tmp_path / "run").episodes) == 1


def test_the_first_rank_tells_the_results_although_torchrun_ends_it(tmp_path):
    """torchrun ends all ranks as soon as one has left with another code than 0."""
    words = ["eval", "--policy", "zero", "--task", "toy/count-50", "--episodes", "5000"]
    words += ["--num-envs", "1", "--stop-after", "1s", "--out", "run"]
    with launching.torchrun(2, *words, folder=tmp_path) as launcher:
        code, out, err = launcher.end()
    assert code == 1, err
    assert "episodes are missing; go on" in err
    assert out.count("report: run/report.html") == 1
    assert (tmp_path / "run" / "report.html").exists()
    assert Results.read(tmp_path / "run").missing == 5000 - launching.lines(tmp_path / "run")


def test_more_ranks_than_episodes_start_over_save_a_dataset_and_build_no_env_in_vain(tmp_path):
    pytest.importorskip("pyarrow", reason="pip install 'polyarm[dataset]'")
    polyarm.evaluate("random", "toy/count-3", episodes=3, num_workers=0, out=tmp_path / "run")
    words = ["eval", "--policy", "zero", "--task", "toy/count-10", "--out", "run", "--fresh"]
    words += [
        "--episodes",
        "2",
        "--num-envs",
        "1",
        "--cameras",
        "front",
        "--image-size",
        "16",
        "16",
    ]
    words += ["--record", "--save-dataset", "saved"]
    with launching.side_by_side(launching.srun(4), *words, folder=tmp_path) as ranks:
        ended = [rank.end() for rank in ranks]
    assert [code for code, _, _ in ended] == [0, 0, 0, 0], ended
    assert [bool(out) for _, out, _ in ended] == [True, False, False, False]
    assert all(err == "" for _, _, err in ended[1:])
    launching.assert_each_once(tmp_path / "run", 2)
    results = Results.read(tmp_path / "run")
    assert all((tmp_path / "run" / each.videos[0]).exists() for each in results.episodes)
    saved = json.loads((tmp_path / "saved" / "meta" / "info.json").read_text())
    assert saved["total_episodes"] == 2
    played = [name for name, lines in launching.journals(tmp_path / "run").items() if lines]
    assert 1 <= len(played) <= 2


def test_ranks_of_a_step_meet_without_being_told_where(tmp_path):
    words = ["bench", "--task", "toy/count-10", "--num-envs", "1", "--num-workers", "0"]
    with launching.side_by_side(launching.srun(2), *words, folder=tmp_path) as ranks:
        (code, table, err), other = (rank.end() for rank in ranks)
    assert code == 0, err
    assert "2 ranks, 2 envs" in err
    assert "slowest" in table
    assert other == (0, "", "")


def test_torchrun_may_be_the_first_process_of_a_container(tmp_path):
    container = ["unshare", "--map-root-user", "--pid", "--mount-proc", "--kill-child"]
    if subprocess.run([*container, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a pid namespace needs root (CAP_SYS_ADMIN), or user namespaces")
    watch = "from polyarm.distributed.launcher import *; print(launcher_pid()); watch_launcher()"
    (tmp_path / "rank.py").write_text(watch)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "rank.py"]
    done = subprocess.run(
        [*container, *torchrun], env=launching.environment(), cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is not installed")

sys.meta_path.insert(0, NoTorch())
from polyarm.cli.main import main
main()
"""


@pytest.mark.parametrize("command", ["bench", "eval"])
def test_a_single_process_needs_no_torch_and_ranks_of_an_evaluation_do_not_either(
    tmp_path, command
):
    words = [sys.executable, "-c", WITHOUT_TORCH, command, "--task", "toy/count-3"]
    how = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    done = subprocess.run(words, env=launching.environment(), **how)
    assert done.returncode == 0, done.stderr
    rank = {**launching.environment(), **launching.srun(2)[0]}
    fresh = ["--fresh"] if command == "eval" else []
    done = subprocess.run([*words, "--num-envs", "1", *fresh], env=rank, **how)
    assert done.returncode == (2 if command == "bench" else 0), done.stderr
    assert ("polyarm[torch]" in done.stderr) == (command == "bench")

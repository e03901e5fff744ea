"""``polyarm bench`` and ``debug`` under torchrun, and what is said about films."""

import json
import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from polyarm.cli.main import main
from polyarm.distributed.ranks import envs_per_rank

BENCH = ["bench", "--task", "toy/count-3", "--max-steps", "6", "--num-workers", "0"]

SHORT = {
    "bench": [*BENCH, "--num-envs", "1"],
    "debug": ["debug", "--task", "toy/count-3", "--num-envs", "1", "--no-video"],
    "train": [
        "train",
        "--task",
        "toy/count-3",
        "--num-envs",
        "1",
        "--train-updates",
        "1",
        "--horizon",
        "4",
        "--eval-every",
        "0",
    ],
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def polyarm(*arguments, capsys):
    """Exit code, stdout and stderr of a command line."""
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    return leaving.value.code, *capsys.readouterr()


class Together:
    """Ranks that run one after the other and see what those before them gave."""

    def __init__(self):
        self.given = []

    @contextmanager
    def __call__(self, rank):
        yield SimpleNamespace(leads=rank.leads, gather=self.gather)

    def gather(self, thing):
        if thing is not None:
            self.given.insert(0, thing)  # the first rank comes last, and sees all
        return self.given


@pytest.mark.parametrize("command", list(SHORT))
@pytest.mark.parametrize("seed", ["3000000000", "-1"])
def test_a_seed_without_episodes_is_refused_in_one_message(command, seed, capsys):
    code, _, err = polyarm(*SHORT[command], "--seed", seed, capsys=capsys)
    assert code == 2
    assert "seed" in err
    assert f"found {seed}" in err
    assert "Traceback" not in err


def test_ranks_share_a_total_and_the_first_one_speaks_for_all(capsys, monkeypatch):
    monkeypatch.setattr("polyarm.cli.bench.process_group", Together())
    monkeypatch.setenv("WORLD_SIZE", "4")
    for rank in (3, 2, 1):
        monkeypatch.setenv("RANK", str(rank))
        assert polyarm(*BENCH, "--num_envs_total", "9", "--json", capsys=capsys) == (0, "", "")
    monkeypatch.setenv("RANK", "0")
    code, out, err = polyarm(*BENCH, "--num_envs_total", "9", "--json", capsys=capsys)
    assert code == 0
    assert "envs_per_rank=[3, 2, 2, 2]" in err
    assert "toy/count-3: 4 ranks, 9 envs" in err
    together = json.loads(out)
    assert together["envs_per_rank"] == [3, 2, 2, 2]
    assert [one["options"]["num_envs"] for one in together["ranks"]] == [3, 2, 2, 2]
    assert together["options"]["num_envs"] == 9
    assert together["env_steps"] == sum(one["env_steps"] for one in together["ranks"]) >= 9 * 6
    longest = max(one["wall_s"] for one in together["ranks"])
    assert together["env_steps_per_s"] == pytest.approx(together["env_steps"] / longest)
    assert together["episodes"] == sum(one["episodes"] for one in together["ranks"])
    assert together["success_rate"] == 1.0


def test_a_total_that_leaves_a_rank_empty_is_refused_by_all(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    for rank in "03":
        monkeypatch.setenv("RANK", rank)
        code, out, err = polyarm(*BENCH, "--num_envs_total", "3", capsys=capsys)
        assert code == 2
        assert f"rank={rank} polyarm: num_envs_total=3 leaves 1 of 4 ranks without an env" in err
        assert not out


def test_a_rank_is_bound_to_its_gpu(capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    monkeypatch.setenv("LOCAL_RANK", "1")
    code, _, err = polyarm(*BENCH, "--num-envs", "1", "--ddp_bind_gpu", capsys=capsys)
    assert code == 0
    assert "no GPU is bound" not in err
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"


@pytest.mark.parametrize("command", ["bench", "debug", "train"])
def test_a_rank_whose_gpus_are_hidden_is_bound_to_none_and_says_so(command, capsys, monkeypatch):
    if command == "train":
        pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("LOCAL_RANK", "1")
    code, _, err = polyarm(*SHORT[command], "--ddp-bind-gpu", capsys=capsys)
    assert code == 0
    assert "--ddp-bind-gpu: CUDA_VISIBLE_DEVICES='' hides all GPUs; no GPU is bound" in err
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("flags", [["--policy-gpus", "0"], ["--render-gpus", "1"]])
def test_gpus_are_bound_together_or_apart_but_not_both(flags, capsys):
    code, _, err = polyarm(*BENCH, "--ddp-bind-gpu", *flags, capsys=capsys)
    assert code == 2
    assert "leave out one or the other" in err


@pytest.mark.parametrize("command", ["bench", "debug", "train"])
def test_ranks_compute_and_render_on_gpus_of_their_own(command, capsys, monkeypatch):
    if command == "train":
        pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")
    monkeypatch.setenv("LOCAL_RANK", "1")
    for name in ("CUDA_VISIBLE_DEVICES", "POLYARM_RENDER_GPU"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    flags = ["--policy-gpus", "0-3", "--render-gpus", "4-7"]
    code, *_ = polyarm(*SHORT[command], *flags, capsys=capsys)
    assert code == 0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert os.environ["POLYARM_RENDER_GPU"] == "5"


@pytest.mark.parametrize("command", ["bench", "debug", "train"])
def test_the_share_of_a_rank_is_computed_once(command, capsys, monkeypatch):
    if command == "train":
        pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")
    computed = []

    def count(options, world):
        computed.append(world)
        return envs_per_rank(options, world)

    monkeypatch.setattr("polyarm.distributed.ranks.envs_per_rank", count)
    code, *_ = polyarm(*SHORT[command], "--num-envs-total", "2", capsys=capsys)
    assert (code, computed) == (0, [1])


def test_debug_films_only_where_every_suite_has_a_camera(tmp_path, capsys):
    blind = ("gym/CartPole-v1", "polyarm.testing:CountingEnv")
    for run, task in enumerate(["toy/count-3", *(f"toy/count-3,{other}" for other in blind)]):
        code, *_ = polyarm(
            "debug", "--task", task, "--num-envs", "1", "--policy", "random", "--image-size", "16",
            "16", "--output-dir", f"run{run}", capsys=capsys,
        )  # fmt: skip
        assert code == 0
    assert [path.parts[-5] for path in tmp_path.rglob("*.mp4")] == ["run0"]


def test_ranks_that_debug_play_other_episodes_in_other_folders(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    played = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        code, *_ = polyarm(
            "debug", "--task", "toy/count-3", "--num_envs_total", "3", "--no_video",
            "--output_dir", "d", capsys=capsys,
        )  # fmt: skip
        assert code == 0
        lines = (tmp_path / f"d/rank{rank}/episodes.jsonl").read_text().splitlines()
        played.append(sorted(json.loads(line)["index"] for line in lines))
    assert played == [[0, 1], [2]]


def test_the_table_says_where_videos_are(tmp_path, capsys):
    code, out, err = polyarm(
        *BENCH, "--num-envs", "2", "--image-size", "16", "16", "--output_dir", "v", capsys=capsys
    )
    assert code == 0
    assert "the first env filmed" in err
    (line,) = [line for line in out.splitlines() if line.startswith("videos")]
    assert line.split() == ["videos", "2", str(tmp_path / "v/videos/toy/count-3")]


def test_a_film_without_an_end_is_no_video_and_said_so(capsys):
    _, out, _ = polyarm(
        *BENCH, "--task", "toy/count-50", "--num-envs", "1", "--image-size", "16", "16",
        "--record", capsys=capsys,
    )  # fmt: skip
    (line,) = [line for line in out.splitlines() if line.startswith("videos")]
    assert "no filmed episode has ended; give more --max-steps" in line


def test_options_of_a_suite_reach_it(capsys):
    code, out, _ = polyarm(
        *BENCH, "--num-envs", "1", "--suite-options", "truncate=true", "binding=true", "--json",
        capsys=capsys,
    )  # fmt: skip
    assert code == 0
    provenance = json.loads(out)["provenance"][0]
    assert provenance["truncate"] is provenance["binding"] is True


def test_help_names_what_is_new(capsys):
    code, out, _ = polyarm("bench", "--help", capsys=capsys)
    assert code == 0
    for words in ("--pos-noise-std", "--num-envs-total", "--suite-options", "--ddp-bind-gpu",
                  "only chooses the GPU that renders", "coming-from-rlbench-scripts"):  # fmt: skip
        assert words in " ".join(out.replace("│", " ").split())

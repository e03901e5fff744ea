"""``polyarm eval``, ``report``, ``compare`` and ``debug`` as a person uses them, on toy tasks."""

import json
import os
import signal

import pytest

from polyarm.cli.evaluate import EvalCommand, output_folder, parse
from polyarm.cli.main import main
from polyarm.cli.train import output_folder as training_folder
from polyarm.rollout import runlock
from polyarm.rollout.options import EvalOptions
from polyarm.training.options import TrainOptions

EVAL = ["eval", "--policy", "random", "--task", "toy/count-3,toy/count-10", "--episodes", "3"]
SMALL = ["--num-envs", "2", "--num-workers", "1"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def polyarm(*arguments, capsys):
    """Exit code, stdout and stderr of a command line."""
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    out, err = capsys.readouterr()
    return leaving.value.code, out, err


def test_an_evaluation_ends_with_a_table_and_the_path_of_the_report(tmp_path, capsys):
    code, out, err = polyarm(*EVAL, *SMALL, capsys=capsys)
    assert code == 0
    folder = tmp_path / "runs" / "random-toy-count-3-toy-count-10"
    assert f"report: {folder.relative_to(tmp_path) / 'report.html'}" in out
    assert "toy/count-10" in out
    assert "2 tasks × 3 episodes" in err
    assert "6/6 episodes, success 100.0%" in err
    names = {path.name for path in folder.iterdir()}
    assert names == {"run.json", "episodes.jsonl", "results.json", "report.html"}
    results = json.loads((folder / "results.json").read_text())
    assert results["options"]["episodes"] == 3


def test_checkpoints_in_long_paths_have_folders_of_their_own():
    run = "lerobot:/home/someone/outputs/train/2026-11-16/" + "act_" * 30 + "/checkpoints"
    names = [f"{run}/{step}/pretrained_model" for step in ("020000", "040000")]
    folders = [output_folder(EvalOptions(policy=name)) for name in names]
    assert folders[0] != folders[1]
    assert folders[0] == output_folder(EvalOptions(policy=names[0]))
    assert all(len(folder.name) == 120 for folder in folders)


def test_trainings_of_many_tasks_have_folders_of_their_own():
    tasks = [",".join(f"metaworld/push-v{place}-of-the-list" for place in range(6)) + f",toy/{last}"
             for last in ("a", "b")]  # fmt: skip
    folders = [training_folder(TrainOptions(task=task)) for task in tasks]
    assert folders[0] != folders[1]
    assert folders[0].name.startswith("ppo-metaworld-push-v0")


def test_the_same_command_again_has_nothing_left_to_do(capsys):
    polyarm(*EVAL, *SMALL, "--out", "a", capsys=capsys)
    code, out, err = polyarm(*EVAL, *SMALL, "--out", "a", capsys=capsys)
    assert code == 0
    assert "report: a/report.html" in out
    assert "1/6" not in err


def test_a_stopped_run_says_how_to_go_on_and_goes_on(capsys):
    long = ["eval", "--policy", "zero", "--task", "toy/count-50", "--episodes", "3000", *SMALL]
    code, out, err = polyarm(*long, "--stop-after", "0.2s", capsys=capsys)
    assert code == 3
    assert "episodes are missing; go on where this run stopped with: polyarm" in err
    assert "report: " in out


def test_the_command_that_goes_on_does_not_start_over(capsys, monkeypatch):
    words = ["eval", "--policy", "zero", "--task", "toy/count-50", "--episodes", "3000", *SMALL]
    words += ["--stop-after", "0.2s", "--fresh"]
    monkeypatch.setattr("sys.argv", ["polyarm", *words])
    code, _, err = polyarm(*words, capsys=capsys)
    assert code == 3
    (line,) = [line for line in err.splitlines() if "go on where" in line]
    assert "--stop-after 0.2s" in line
    assert "--fresh" not in line


def test_a_file_and_flags_fill_the_same_options(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(
        "policy: zero\ntask: toy/count-3\nepisodes: 2\nnum-envs: 2\nnum_workers: 1\n"
        "out: from_file\n"
    )
    code, *_ = polyarm("eval", "--config", "run.yaml", "--episodes", "4", capsys=capsys)
    assert code == 0
    options = json.loads((tmp_path / "from_file" / "run.json").read_text())["options"]
    assert (options["policy"], options["episodes"], options["num_envs"]) == ("zero", 4, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [("episode: 3", "did you mean 'episodes'"), ("- 3", "options by name"), ("a: [", "run.yaml")],
)
def test_a_wrong_file_is_told(tmp_path, capsys, text, message):
    (tmp_path / "run.yaml").write_text(text)
    code, _, err = polyarm("eval", "--config", "run.yaml", capsys=capsys)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("words", "recorded"),
    [
        (["--record"], "all"),
        (["--record", "--fps", "5"], "all"),
        (["--record", "failures"], "failures"),
        (["--record", "first:2"], "first:2"),
        ([], "none"),
    ],
)
def test_record_alone_means_all(words, recorded):
    seen = []
    parse(words, lambda defaults, given: seen.append(given) or EvalCommand())
    assert (seen[0][seen[0].index("--record") + 1] if "--record" in seen[0] else "none") == recorded


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task", "toy/count-33"], "did you mean"),
        (["--policy", "expret"], "did you mean 'expert'"),
        (["--policy", "no_such_module:policy"], "no_such_module"),
        (["--policy", "*.pt"], "no file matches"),
        (["--cameras", "fronnt"], "did you mean 'front'"),
        (["--record", "some", "--cameras", "front"], "first:N"),
        (["--stop-after", "soon"], "3h50m"),
        (["--suite-options", "speed=3"], "speed"),
        (["--report-to", "mlflow"], "wandb"),
        (["--episodes", "0"], "episodes must be at least 1"),
        (["--num-envs", "-1"], "num-envs must be at least 1"),
    ],
)
def test_wrong_input_is_told_in_one_message(capsys, flags, message):
    code, _, err = polyarm(*EVAL, *SMALL, *flags, capsys=capsys)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert "/6 episodes" not in err  # before anything has run


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_COUNT": "2"}, "an array job"),
        ({"SLURM_RESTART_COUNT": "1"}, "requeued"),
    ],
)
def test_a_job_that_is_started_again_and_again_does_not_start_over(
    capsys, monkeypatch, variables, message
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, _, err = polyarm(*EVAL, *SMALL, "--fresh", capsys=capsys)
    assert code == 2
    assert message in err


def test_a_job_that_is_queued_again_on_another_host_gets_its_folder_back(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(runlock, "_LOOK_S", 0.01)
    monkeypatch.setattr(runlock, "STALE_S", 0.3)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    for job, attempt, status in (("4712", 0, 2), ("4711", 1, 2), ("4711", 0, 0)):
        holder = {"host": "elsewhere", "pid": 7, "job": f"SLURM job {job}", "attempt": [attempt, 0]}
        (tmp_path / "run" / ".rank0.lock").write_text(json.dumps(holder))
        code, _, err = polyarm(*EVAL, *SMALL, "--out", "run", capsys=capsys)
        assert code == status, err


def test_a_dry_run_estimates_and_leaves_nothing(tmp_path, capsys):
    code, out, _ = polyarm(*EVAL, *SMALL, "--dry-run", capsys=capsys)
    assert code == 0
    assert "6 episodes" in out
    assert "hours and" in out
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_by_a_glob_are_all_evaluated(tmp_path, capsys, monkeypatch):
    (tmp_path / "my_policies.py").write_text(
        "import numpy as np\n"
        "from pathlib import Path\n"
        "class Load:\n"
        "    def __init__(self, path): self.value = float(Path(path).read_text())\n"
        "    def begin(self, episodes): pass\n"
        "    def act(self, batch): return np.full((len(batch), 2), self.value, np.float32)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for step in (9, 10):
        (tmp_path / f"step_{step}.txt").write_text(str(step / 100))
    code, *_ = polyarm(
        "eval", "--policy", "my_policies:Load@step_*.txt", "--task", "toy/count-3",
        "--episodes", "2", "--out", "sweep", *SMALL, capsys=capsys,
    )  # fmt: skip
    assert code == 0
    lines = (tmp_path / "sweep" / "episodes.jsonl").read_text().splitlines()
    assert [json.loads(line)["policy"] for line in lines] == ["step_9"] * 2 + ["step_10"] * 2
    assert "step_10" in (tmp_path / "sweep" / "report.html").read_text()


def test_a_report_is_written_anew_and_runs_are_compared(tmp_path, capsys):
    polyarm(*EVAL, *SMALL, "--out", "a", capsys=capsys)
    polyarm(*EVAL, *SMALL, "--out", "b", "--policy", "zero", capsys=capsys)
    (tmp_path / "a" / "report.html").unlink()
    code, out, _ = polyarm("report", "a", capsys=capsys)
    assert code == 0
    assert (tmp_path / "a" / "report.html").exists()
    code, out, _ = polyarm("compare", "a", "b", capsys=capsys)
    assert code == 0
    assert "difference" in out
    code, _, err = polyarm("report", "nowhere", capsys=capsys)
    assert code == 2
    assert "holds no run" in err


def test_debug_films_the_first_env(tmp_path, capsys):
    code, *_ = polyarm(
        "debug", "--task", "toy/count-10", "--num-envs", "2", "--episodes", "6",
        "--image-size", "16", "16", "--output-dir", "d", capsys=capsys,
    )  # fmt: skip
    assert code == 0
    lines = [json.loads(x) for x in (tmp_path / "d" / "episodes.jsonl").read_text().splitlines()]
    filmed = [line for line in lines if line["videos"]]
    assert 0 < len(filmed) < 6
    assert all((tmp_path / "d" / video).exists() for line in filmed for video in line["videos"])


def test_help_of_eval_teaches(capsys):
    code, out, _ = polyarm("eval", "--help", capsys=capsys)
    assert code == 0
    for words in ("--config", "--record", "--stop-after", "examples:", "Exit codes", "--execute"):
        assert words in out


def test_a_signal_ends_the_wait_for_a_predecessor(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    (tmp_path / "run").mkdir()
    holder = {"host": "elsewhere", "pid": 7, "job": "SLURM job 4711", "attempt": [0, 0]}
    (tmp_path / "run" / ".rank0.lock").write_text(json.dumps(holder))
    told = "polyarm.rollout.runlock._log.warning"
    monkeypatch.setattr(told, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    code, _, err = polyarm(*EVAL, *SMALL, "--out", "run", capsys=capsys)
    assert code == 75
    assert "polyarm: stopped while waiting for run; nothing was begun" in err

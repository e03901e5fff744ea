"""The command teaches, answers and fails in words; its exit code says which."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from polyarm import __version__, registry
from polyarm.bench.throughput import run_plan
from polyarm.cli import exits, suites
from polyarm.cli import main as main_module
from polyarm.cli.main import main
from polyarm.contracts import EnvSpec, Requirement
from polyarm.suites.metaworld import CAMERAS

POLYARM = Path(sys.executable).with_name("polyarm")
BENCH = ["bench", "--task", "toy/count-3", "--num-envs", "2", "--max-steps", "6"]


def polyarm(*arguments, capsys):
    """Exit code, stdout and stderr of a command line."""
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    return leaving.value.code, *capsys.readouterr()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_shows_the_commands_with_examples(arguments, capsys):
    code, out, _ = polyarm(*arguments, capsys=capsys)
    assert code == 0
    for words in ("bench", "suites", "examples:", "--version"):
        assert words in out


def test_comments_of_the_overview_stand_apart_from_its_commands(capsys):
    _, out, _ = polyarm("--help", capsys=capsys)
    lines = [line.strip(" │") for line in out.splitlines()]
    (compared,) = [line for line in lines if line.startswith("polyarm compare")]
    assert re.split("  +", compared) == [
        "polyarm compare runs/a runs/b",
        "whether two runs really differ",
    ]


def test_the_command_lists_every_exit_code():
    codes = [code for name, code in vars(exits).items() if name.isupper()]
    listed = {int(code) for code in re.findall(r"\b(\d+):", main_module.__doc__)}
    assert listed == {0, *codes}


def test_help_of_debug_shows_examples_and_mentions_old_flags(capsys):
    code, out, _ = polyarm("debug", "--help", capsys=capsys)
    assert code == 0
    for words in ("examples:", "polyarm debug --task metaworld/reach-v3", "--task_class",
                  "coming-from-rlbench-scripts.md", "--fast"):  # fmt: skip
        assert words in out


def test_help_of_bench_shows_every_option_and_examples(capsys):
    code, out, _ = polyarm("bench", "--help", capsys=capsys)
    assert code == 0
    assert "polyarm bench --task metaworld/reach-v3" in out
    for option in (
        "task", "num-envs", "num-workers", "max-steps", "action-chunk", "no-rgb", "fast",
        "cameras", "image-size", "copy-obs", "profile-timing", "json", "seed", "display",
    ):  # fmt: skip
        assert f"--{option} " in out


def test_help_imports_neither_the_engine_nor_a_simulator():
    code = (
        "import sys\n"
        "from polyarm.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(bool({'numpy', 'gymnasium', 'polyarm.vector.make'} & set(sys.modules)))"
    )
    run = [sys.executable, "-c", code]
    subprocess.run(run, check=True, timeout=30, stdout=subprocess.DEVNULL)


def test_the_version_is_the_package_s(capsys):
    assert polyarm("--version", capsys=capsys) == (0, f"polyarm {__version__}\n", "")


def test_an_unknown_command_is_refused(capsys):
    code, out, err = polyarm("bnch", capsys=capsys)
    assert code == 2
    assert "bnch" in out + err


def test_bench_closes_with_a_table(capsys):
    code, out, err = polyarm(*BENCH, capsys=capsys)
    assert code == 0
    for row in ("env-steps/s", "frames/s", "episodes", "success rate", "latency p50",
                "latency p99", "start-up", "PSS per env"):  # fmt: skip
        assert row in out
    assert "exec_s=" in err
    assert "ipc_s=" in err
    assert "done=4" in err
    assert "return=6.00" in err


def test_the_timing_split_is_shown_when_asked_for(capsys):
    _, out, _ = polyarm(*BENCH, "--profile-timing", capsys=capsys)
    for part in ("build", "env_call", "sim", "frames", "obs", "video", "toggle", "other", "ipc"):
        assert part in out


def test_underscores_are_as_good_as_dashes(capsys):
    arguments = [
        "bench", "--task", "toy/count-3", "--num_envs", "3", "--max_steps", "4", "--action_chunk",
        "2", "--image_size", "8", "16", "--cameras", "front", "wrist", "--copy_obs",
        "--profile_timing", "--no_rgb", "--json",
    ]  # fmt: skip
    code, out, _ = polyarm(*arguments, capsys=capsys)
    assert code == 0
    options = json.loads(out)["options"]
    assert options["num_envs"] == 3
    assert options["image_size"] == [8, 16]
    assert options["cameras"] == ["front", "wrist"]
    assert options["copy_obs"] is options["no_rgb"] is True


def test_with_json_stdout_is_one_object_and_the_rest_goes_to_stderr(capsys):
    code, out, err = polyarm(*BENCH, "--json", capsys=capsys)
    assert code == 0
    assert out.count("\n") == 1
    assert json.loads(out)["env_steps"] == 12
    assert "env-steps/s" in err


@pytest.mark.parametrize(
    ("task", "closest"),
    [("metaworld/reech-v3", "metaworld/reach-v3"), ("metaword/reach-v3", "metaworld")],
)
def test_an_unknown_task_names_the_closest_ones(task, closest, capsys):
    code, out, err = polyarm("bench", "--task", task, capsys=capsys)
    assert code == 2
    assert f"did you mean '{closest}'" in err
    assert "Traceback" not in out + err


def test_an_error_has_a_traceback_only_for_debugging(capsys, monkeypatch):
    monkeypatch.setenv("POLYARM_DEBUG", "1")
    code, _, err = polyarm("bench", "--task", "toy/none", capsys=capsys)
    assert code == 2
    assert "Traceback" in err


def test_an_env_that_cannot_be_built_is_one_message(capsys):
    code, out, err = polyarm("bench", "--task", "gym/os:Missing-v0", capsys=capsys)
    assert code == 2
    assert "could not build" in err
    assert "Traceback" not in out + err
    assert "POLYARM_DEBUG=1" in err


def test_ctrl_c_shows_what_was_measured(capsys, monkeypatch):
    def interrupted_run(plan, progress, start):
        def interrupt_at_ten(now):
            progress(now)
            if now.call == 10:
                os.kill(os.getpid(), signal.SIGINT)

        return run_plan(plan, interrupt_at_ten, start)

    monkeypatch.setattr("polyarm.cli.bench.run_plan", interrupted_run)
    arguments = ["bench", "--task", "toy/count-3", "--num-envs", "2", "--max-steps", "100000000"]
    code, out, err = polyarm(*arguments, capsys=capsys)
    assert code == 130
    assert "interrupted" in err
    assert "env-steps/s" in out


def test_a_reader_that_leaves_early_is_no_error():
    command = [sys.executable, "-m", "polyarm", "suites", "gym"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        run = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(writer)
    assert run.returncode == 141
    assert run.stderr == b""


def test_a_crash_in_a_library_shows_where_it_was(tmp_path):
    (tmp_path / "crash.py").write_text("import os\n\ndef env():\n    os.abort()\n")
    words = ["bench", "--task", "crash:env", "--num-workers", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "polyarm", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGABRT
    assert re.search(r'Fatal Python error: Aborted(?s:.*)crash.py", line 4 in env', done.stderr)


TINY = "bench --task toy/count-3 --num-envs 2 --max-steps 3"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["--version", "bench --help", TINY, f"{TINY} --json"])
def test_a_command_needs_no_streams(words, closed):
    """What the engine opens first once got the number of stderr: workers died in their build."""
    command = f"{sys.executable} -m polyarm {words} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stdout) is (">&-" not in closed.split())


@pytest.mark.parametrize("words", ["--version", "bench --help", TINY, "suites"])
@pytest.mark.parametrize("full", ["stdout", "stderr", "both"])
def test_output_that_cannot_be_written_is_told_in_one_sentence(words, full):
    streams = {"stdout": ">/dev/full", "stderr": "2>/dev/full", "both": ">/dev/full 2>/dev/full"}
    command = f"{sys.executable} -m polyarm {words} {streams[full]}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == (0 if full == "stderr" and words != TINY else 2)
    assert "Traceback" not in done.stderr
    assert done.stderr.count("the output cannot be written: No space") == (full == "stdout")


def test_suites_lists_what_there_is_and_what_it_needs(capsys):
    code, out, _ = polyarm("suites", capsys=capsys)
    assert code == 0
    for name in registry.suite_names():
        assert name in out
    assert "gymnasium" in out
    assert "50" in out


def test_suites_lists_the_cameras_and_options_of_a_suite(capsys):
    _, out, _ = polyarm("suites", "metaworld", capsys=capsys)
    spec = registry.load("metaworld").check(EnvSpec("metaworld", "reach-v3"))
    for name in (*spec.options, *CAMERAS):
        assert re.search(rf"\b{name}\b", out), name
    assert "--suite-options NAME=VALUE" in out


def test_suites_shows_how_to_get_what_is_missing(capsys, monkeypatch):
    suite = registry.load("metaworld")
    missing = [Requirement("metaworld", None, "pip install 'polyarm[metaworld]'")]
    monkeypatch.setattr(type(suite), "requirements", lambda _: missing)
    suites.run(None)
    out = capsys.readouterr().out
    assert "metaworld: missing" in out
    assert "pip install 'polyarm[metaworld]'" in out


def test_the_tasks_of_a_suite_end_with_what_is_missing(capsys, monkeypatch):
    suite = registry.load("metaworld")
    missing = [Requirement("assets", None, "reach.stl is missing: polyarm setup metaworld")]
    monkeypatch.setattr(type(suite), "requirements", lambda _: missing)
    suites.run("metaworld")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "assets: missing  reach.stl is missing: polyarm setup metaworld"


def test_suites_lists_the_tasks_of_one(capsys):
    code, out, _ = polyarm("suites", "metaworld", capsys=capsys)
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("metaworld/reach-v3 "))
    assert "Reach a goal position" in line
    assert "mt10" in line
    assert "metaworld/ml45-test" in out


def test_an_unknown_suite_names_the_closest_one(capsys):
    code, _, err = polyarm("suites", "metawrld", capsys=capsys)
    assert code == 2
    assert "did you mean 'metaworld'" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "--task", "mine:Mine", "--max-steps", "2", "--num-envs", "1"),
        ("bench", "--task", "gym/mine:Mine-v0", "--max-steps", "2", "--num-envs", "1"),
        ("eval", "--task", "mine:Mine", "--policy", "random", "--episodes", "1"),
    ],
)
def test_tasks_are_found_in_the_working_folder(arguments, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv as Mine\n"
        "gymnasium.register('Mine-v0', Mine)\n"
    )
    command = [str(POLYARM), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_where_nobody_succeeds_returns_are_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for task, expected in (("gym/CartPole-v1", True), ("toy/count-3", False)):
        few = ("--episodes", "2", "--num-envs", "2")
        code, out, err = polyarm("eval", "--policy", "zero", "--task", task, *few, capsys=capsys)
        assert code == 0, err
        assert ("return" in out.splitlines()[0]) == expected, out


@pytest.mark.parametrize("program", [(sys.executable, "-m", "polyarm"), (str(POLYARM),)])
def test_a_warning_about_the_command_is_its_text_alone(program, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Mine(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        return *super().step(action)[:-1], {'words': 'lost on the way'}\n"
    )
    some = ("bench", "--task", "mine:Mine", "--num-envs", "1", "--max-steps", "3")
    command = [*program, *some]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "Warning" not in done.stderr
    assert re.search(r"^polyarm: .*'words'", done.stderr, re.M), done.stderr

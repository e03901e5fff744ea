"""polyarm check teaches, stops at the first thing that fails, and says which."""

from __future__ import annotations

import pytest

from polyarm import registry
from polyarm.cli.main import main
from polyarm.contracts import Requirement

CHOSEN = """
features: {use_ript_vla_runner: true}
task: {benchmark_name: libero_goal, num_parallel_envs: 2}
algo: {rollouts_per_env: 2}
"""


@pytest.fixture
def check(capsys, tmp_path):
    """Exit code and output of a check of a configuration."""

    def check(text, *arguments):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(SystemExit) as leaving:
            main(["check", "ript", "--config", str(tmp_path / "config.yaml"), *arguments])
        return leaving.value.code, capsys.readouterr().out

    return check


@pytest.mark.parametrize("arguments", [["check", "--help"], ["check", "ript", "--help"]])
def test_help_shows_options_examples_and_exit_codes(arguments, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    out = capsys.readouterr().out
    assert leaving.value.code == 0
    for words in ("--config", "--policy", "--max-steps", "examples:", "polyarm check ript"):
        assert words in out


@pytest.mark.parametrize("arguments", [["check"], ["check", "robots"], ["check", "ript", "--no"]])
def test_a_wrong_command_line_is_told(arguments, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code == 2
    assert "polyarm check --help" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CHOSEN.replace("true", "false"), "set features.use_ript_vla_runner to true"),
        (CHOSEN.replace("num_parallel", "num_paralel"), "did you mean 'task.num_parallel_envs'"),
        (CHOSEN.replace("rollouts_per_env: 2", "rollouts_per_env: two"), "whole number"),
        ("task: [", "is no YAML file"),
    ],
)
def test_a_wrong_configuration_fails_at_once(check, text, told):
    code, out = check(text)
    assert code == 1
    assert out.startswith("✗ configuration")
    assert told in out
    assert "✓" not in out


def test_episodes_without_steps_are_refused(check):
    assert check(CHOSEN, "--max-steps", "0") == (
        1,
        "✗ configuration --max-steps is at least 1, found 0\n",
    )


@pytest.mark.parametrize("flag", ["--config", "--config-path", "--config_path"])
def test_a_missing_file_is_told(flag, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["check", "ript", flag, "nowhere.yaml"])
    assert leaving.value.code == 1
    assert "nowhere.yaml cannot be read" in capsys.readouterr().out


def test_what_libero_lacks_is_told_with_the_fix(check, monkeypatch):
    lacking = [Requirement("assets", None, "polyarm setup libero"), Requirement("numba", "1", "")]
    monkeypatch.setattr(registry.load("libero"), "requirements", lambda: lacking, raising=False)
    code, out = check(CHOSEN)
    assert code == 1
    assert "✓ configuration" in out
    assert "✗ LIBERO        missing: assets. Fix: polyarm setup libero" in out


def test_an_unknown_task_fails_the_runner(check, monkeypatch):
    monkeypatch.setattr(registry.load("libero"), "requirements", list, raising=False)
    code, out = check(CHOSEN.replace("libero_goal", "libero_goals"))
    assert code == 1
    assert "✗ runner" in out
    assert "did you mean 'libero_goal'" in out


def test_an_unknown_policy_is_told_before_any_env_is_built(check, monkeypatch):
    monkeypatch.setattr(registry.load("libero"), "requirements", list, raising=False)
    code, out = check(CHOSEN, "--policy", "randm")
    assert code == 1
    assert "✗ policy        unknown policy 'randm'; did you mean 'random'?" in out
    assert "envs  " not in out

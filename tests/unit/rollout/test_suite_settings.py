"""What a command tells its suites is checked once, and the suites say what comes of it."""

from dataclasses import dataclass, field

import pytest

from polyarm.errors import InvalidCall, UnknownName
from polyarm.rollout.options import OF_SUITE, EvalOptions, NamesTasks
from polyarm.rollout.suite_settings import (
    check_fast,
    pose_actions,
    refuse_own_options,
    specs,
    suite_settings,
)
from polyarm.testing.toy_suite import ToySuite

DRAWER = ["rlbench/open_drawer"]


@dataclass(frozen=True, slots=True)
class Options(NamesTasks):
    task: str = "rlbench/open_drawer"
    arm_mode: str | None = field(default=None, metadata=OF_SUITE)
    max_steps: int | None = None
    suite_options: tuple[str, ...] = ()


def test_the_names_in_task_are_separated_by_commas():
    for kind in (Options, EvalOptions):
        assert kind(task=" toy/count-3 ,,gym/X-v0").tasks == ["toy/count-3", "gym/X-v0"]


def test_suites_are_told_what_is_theirs_and_nothing_else():
    options = Options(arm_mode="planning", max_steps=3, suite_options=("depth=true",))
    assert suite_settings(options) == {"arm_mode": "planning", "depth": True}
    assert suite_settings(Options()) == {}


@pytest.mark.parametrize("task", ["gym/CartPole-v1", "toy/count-3", "rlbench/open_drawer,gym/X:Y"])
def test_an_option_that_a_suite_lacks_is_refused(task):
    with pytest.raises(UnknownName, match=r"option of (gym|toy) 'arm_mode'"):
        suite_settings(Options(task=task, arm_mode="ik"))


def test_options_of_the_engine_are_none_of_a_suite():
    for refuse in (lambda: suite_settings(Options(suite_options=("num-workers=3",))),
                   lambda: refuse_own_options({"num_workers": 3})):  # fmt: skip
        with pytest.raises(InvalidCall, match="'num_workers' is an option of the command"):
            refuse()


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, "absolute"),
        ({"control": "delta"}, "delta"),
        ({"arm_mode": "planning"}, "absolute"),
        ({"arm_mode": "joint_position", "control": "delta"}, None),
        ({"arm_mode": "joint_velocity"}, None),
    ],
)
def test_rlbench_says_how_its_actions_are_poses(settings, kind):
    assert pose_actions(specs(DRAWER, settings)) == kind


def test_actions_are_poses_only_if_all_of_them_are_alike(monkeypatch):
    assert pose_actions(specs(["toy/count-3"])) is None
    assert pose_actions(specs([*DRAWER, "toy/count-3"])) is None
    monkeypatch.setattr(ToySuite, "pose_actions", lambda self, spec: "delta", raising=False)
    assert pose_actions(specs(["toy/count-3"])) == "delta"
    assert pose_actions(specs([*DRAWER, "toy/count-3"])) is None


def test_fast_is_contradicted_by_what_is_not_fast():
    check_fast(specs([*DRAWER, "toy/count-3"]))
    for settings in ({"arm_mode": "planning"}, {"idle_fps": 2.0}):
        with pytest.raises(InvalidCall, match=r"--fast means \w+=(ik|0), found"):
            check_fast(specs(DRAWER, settings))

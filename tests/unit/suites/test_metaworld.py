"""What the trainer learns of Meta-World without importing it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest

from polyarm.contracts import EnvSpec
from polyarm.errors import UnknownName
from polyarm.suites.metaworld import MetaWorld

SUITE = MetaWorld()


def spec(task: str = "reach-v3", *cameras: str, **options: Any) -> EnvSpec:
    return EnvSpec("metaworld", task, cameras, options=options)


def test_there_are_fifty_tasks_with_instruction_and_horizon() -> None:
    tasks = SUITE.tasks()
    assert len(tasks) == 50
    assert all(task.instruction and task.max_steps == 500 for task in tasks)


def test_every_member_of_a_set_is_a_task() -> None:
    names = {task.name for task in SUITE.tasks()}
    for members in SUITE.sets().values():
        assert {f"metaworld/{member}" for member in members} <= names


def test_checking_fills_in_the_defaults() -> None:
    assert SUITE.check(spec(msaa=0)).options == {
        "success": "any",
        "terminate_on_success": True,
        "goal": "visible",
        "reward_version": "v2",
        "max_steps": 500,
        "shadow_size": None,
        "msaa": 0,
    }
    checked = SUITE.check(spec())
    assert SUITE.check(checked) == checked


def test_success_of_the_last_step_does_not_end_the_episode_unless_asked() -> None:
    assert not SUITE.check(spec(success="last")).options["terminate_on_success"]
    asked = SUITE.check(spec(success="last", terminate_on_success=True))
    assert asked.options["terminate_on_success"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (spec("reach-v2"), "did you mean 'metaworld/reach-v3'.*tasks end in -v3"),
        (spec("reach-v3", "corner9"), "camera of metaworld 'corner9'; did you mean 'corner"),
        (spec(goals="hidden"), "option of metaworld 'goals'; did you mean 'goal'"),
        (spec(goal="invisible"), "value of goal 'invisible'; did you mean 'visible'"),
        (spec(terminate_on_success="yes"), "value of terminate_on_success"),
        (spec(max_steps=0), "value of max_steps '0'. Give an int from 1 on"),
        (spec(msaa=True), "value of msaa 'True'"),
        (spec(max_steps=None), "value of max_steps 'None'"),
        (spec(msaa=1000), "value of msaa '1000'. Give an int from 0 to 16"),
        (spec("ml10"), "did you mean 'metaworld/ml10-train' or 'metaworld/ml10-test'\\?"),
    ],
)
def test_what_does_not_exist_is_refused(wrong: EnvSpec, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        SUITE.check(wrong)


def test_the_description_holds_spaces_and_everything_that_shapes_an_episode() -> None:
    description = SUITE.describe(spec("push-v3", "corner2", "corner", goal="hidden"))
    space = description.observation_space
    assert {key: space[key].shape for key in space} == {  # type: ignore[index,attr-defined]
        "state": (39,),
        "pixels/corner2": (256, 256, 3),
        "pixels/corner": (256, 256, 3),
    }
    assert description.action_space.shape == (4,)
    cheap = {"shadow_size": 256, "msaa": 0}
    chosen = {"goal": "hidden", "reward_version": "v1", "success": "last", "max_steps": 99, **cheap}
    described = SUITE.describe(spec("push-v3", "corner2", "corner", **chosen)).provenance
    assert described == {
        "metaworld": version("metaworld"),
        "mujoco": version("mujoco"),
        "task": "push-v3",
        "instruction": description.provenance["instruction"],
        "cameras": {
            "corner2": "moved to [0.75, 0.075, 0.7], image turned by 180 degrees",
            "corner": "as in Meta-World",
        },
        "image_size": [256, 256],
        "terminate_on_success": False,
        **chosen,
    }
    assert described["instruction"] == "Push the puck to a goal"


def test_requirements_name_the_command_that_installs_them() -> None:
    assert all("pip install" in requirement.fix for requirement in SUITE.requirements())

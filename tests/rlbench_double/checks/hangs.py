"""Everything that hangs, each in a child; prints a name and a process id just before it does.

The children are forked before anything is launched. A line without an id says that one has ended.
"""

import os
import sys
from collections.abc import Callable

import numpy as np
from double_session import STILL, arms, make

children: dict[int, str] = {}


def say(*words: object) -> None:
    os.write(sys.stdout.fileno(), (" ".join(map(str, words)) + "\n").encode())


def second_launch(about_to: Callable[[], None]) -> None:
    make()
    about_to()
    make()


def nan_velocity(about_to: Callable[[], None]) -> None:
    _, task = make()
    task.reset()
    about_to()
    task.step(STILL * np.nan)


def nan_position(about_to: Callable[[], None]) -> None:
    _, task = make(arm=arms.EndEffectorPoseViaIK())
    action = np.append(task.reset()[1].gripper_pose, 1)
    action[1] = np.nan
    about_to()
    task.step(action)


def forked_child(about_to: Callable[[], None]) -> None:
    _, task = make()
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        about_to()
        task.reset()


def hang_launch(about_to: Callable[[], None]) -> None:
    about_to()
    make()


def hang_reset(about_to: Callable[[], None]) -> None:
    _, task = make()
    about_to()
    task.reset()


def hang_step(about_to: Callable[[], None]) -> None:
    _, task = make()
    task.reset()
    about_to()
    task.step(STILL)


for scenario in (
    second_launch,
    nan_velocity,
    nan_position,
    forked_child,
    hang_launch,
    hang_reset,
    hang_step,
):
    if child := os.fork():
        children[child] = scenario.__name__
        continue
    if scenario.__name__.startswith("hang_"):
        os.environ["RLBENCH_DOUBLE"] = scenario.__name__
    pid = os.getpid()
    scenario(lambda: say(scenario.__name__, pid))  # noqa: B023  only called in this very turn
    os._exit(0)

while children:
    say("ended:", children.pop(os.wait()[0]))

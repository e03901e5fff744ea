"""Everything that hangs, each in a child; prints a name and a process id when it does.

The children are forked before anything is launched. A line without an id says that one has ended.
"""

import os
import sys
import time

import numpy as np
from double_session import STILL, arms, make

children: dict[int, str] = {}
sleep = time.sleep


def say(*words: object) -> None:
    os.write(sys.stdout.fileno(), (" ".join(map(str, words)) + "\n").encode())


def second_launch() -> None:
    make()
    make()


def nan_velocity() -> None:
    _, task = make()
    task.reset()
    task.step(STILL * np.nan)


def nan_position() -> None:
    _, task = make(arm=arms.EndEffectorPoseViaIK())
    action = np.append(task.reset()[1].gripper_pose, 1)
    action[1] = np.nan
    task.step(action)


def forked_child() -> None:
    _, task = make()
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        task.reset()


def hang_launch() -> None:
    make()


def hang_reset() -> None:
    _, task = make()
    task.reset()


def hang_step() -> None:
    _, task = make()
    task.reset()
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
    # Only what hangs sleeps: a signal before that would fail the call instead.
    time.sleep = lambda seconds, name=scenario.__name__: (say(name, os.getpid()), sleep(seconds))
    scenario()
    os._exit(0)

while children:
    say("ended:", children.pop(os.wait()[0]))

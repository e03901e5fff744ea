"""A live demo of two tasks, replayed by the action mode in MODE."""

import os

import numpy as np
from double_session import arms, make

mode = os.environ["MODE"]
for name, seed in (("open_drawer", 0), ("push_button", 9)):
    env, task = make(name, getattr(arms, mode)())
    task.set_variation(1)
    task.reset()
    np.random.seed(seed)
    (demo,) = task.get_demos(1, live_demos=True)
    assert demo.num_reset_attempts == (2 if seed == 9 else 1)
    obs = demo._observations
    _, first = task.reset_to_demo(demo)
    assert np.array_equal(first.task_low_dim_state, obs[0].task_low_dim_state)
    frames = range(1, len(obs))
    if "Planning" in mode:
        frames = [
            i
            for i in frames
            if i == len(obs) - 1
            or (not obs[i].joint_velocities.any() and obs[i - 1].joint_velocities.any())
            or obs[i].gripper_open != obs[i - 1].gripper_open
        ]
    for i in frames:
        *_, terminate = task.step(np.append(obs[i].gripper_pose, obs[i].gripper_open))
    assert task._task.success()[0], (name, len(obs), list(frames))
    assert terminate
    env.shutdown()

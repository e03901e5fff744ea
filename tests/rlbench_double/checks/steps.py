"""What steps return and what they raise."""

from pathlib import Path

import numpy as np
from double_session import (
    STILL,
    InvalidActionError,
    TaskEnvironmentError,
    caught,
    make,
    name_to_task_class,
)

here = Path.cwd()
env, task = make("open_drawer", shaped_rewards=True)
assert Path.cwd() == here
task.reset()
assert "shaped rewards" in str(caught(RuntimeError, task.step, STILL))
assert "only 3" in str(caught(TaskEnvironmentError, task.set_variation, 3))
env.shutdown()

env, task = make()
assert env.action_shape == (8,)
assert task.variation_count() == 20
assert task._task.success()[0]  # nothing is asked of it yet
assert "reset" in str(caught(RuntimeError, task.step, STILL))
task.set_variation(7)
labels = [task.reset()[1].misc["variation_index"] for _ in range(2)]
assert labels == [0, 7]  # a mistake of RLBench: the first is always called 0
result = task.step(np.append(np.full(7, 0.1), 1))
assert len(result) == 3
assert result[1] == 0.0
assert type(result[2]) is np.bool_
assert not result[2]
before = result[0].joint_positions
caught(InvalidActionError, task.step, np.append(np.full(7, 0.1), [1, 1]))
assert not np.allclose(task.get_observation().joint_positions, before)
for odd, opened in ((7.5, 1.0), (np.nan, 0.0)):
    assert task.step(np.append(np.zeros(7), odd))[0].gripper_open == opened
other = env.get_task(name_to_task_class("push_button"))
other.reset()
assert task.step(STILL)[1:] == (1.0, True)  # the first one knows nothing any more
env.shutdown()

env, task = make(robot_setup="ur5")
assert env.action_shape == (7,)
assert len(task.reset()[1].joint_positions) == 6
env._obs_config.gripper_touch_forces = True
caught(NotImplementedError, task.get_observation)
env.shutdown()

"""Names, defaults and lookups, without a launch."""

import inspect

import pyrep
import rlbench
from double_session import (
    Discrete,
    Environment,
    MoveArmThenGripper,
    ObservationConfig,
    arms,
    caught,
    name_to_task_class,
)
from pyrep.const import RenderMode
from rlbench.backend.task import Task
from rlbench.const import SUPPORTED_ROBOTS
from rlbench.utils import InvalidTaskName

assert (rlbench.__version__, pyrep.__version__) == ("1.2.0", "4.1.0.3")
names = list(inspect.signature(Environment).parameters)
assert names[:4] == ["action_mode", "dataset_root", "obs_config", "headless"], names
assert names[-2:] == ["arm_max_velocity", "arm_max_acceleration"]
assert len(names) == 14
mode = MoveArmThenGripper(arms.JointPosition(), Discrete())
assert Environment(mode)._obs_config is Environment(mode)._obs_config
caught(NotImplementedError, mode.action_bounds)
caught(AttributeError, lambda: Environment(mode).action_shape)
pose = MoveArmThenGripper(arms.EndEffectorPoseViaIK(), Discrete())
assert Environment(pose).action_shape == (8,)
caught(ValueError, lambda: Environment(mode, robot_setup="kuka"))
assert {name: row[2] for name, row in SUPPORTED_ROBOTS.items()} == {
    "panda": 7,
    "jaco": 6,
    "mico": 6,
    "sawyer": 7,
    "ur5": 6,
}
first, second = (name_to_task_class("open_drawer") for _ in range(2))
assert first is not second
assert first.__name__ == "OpenDrawer"
assert issubclass(first, Task)
for wrong in ("OpenDrawer", "no_such_task"):
    caught(InvalidTaskName, name_to_task_class, wrong)
camera = ObservationConfig().front_camera
assert camera.image_size == (128, 128)
assert camera.render_mode is RenderMode.OPENGL3

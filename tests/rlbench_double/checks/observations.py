"""Fields, shapes and dtypes of observations, and frames that come and go."""

import numpy as np
from double_session import STILL, caught, make

env, task = make(cameras=["front", "wrist"])
descriptions, obs = task.reset()
assert len(descriptions) == 3
assert all("red" in text for text in descriptions)
front = {"rgb": "uint8", "depth": "float32", "mask": "float32", "point_cloud": "float64"}
for kind, dtype in front.items():
    value = getattr(obs, f"front_{kind}")
    assert (value.dtype, value.shape[:2]) == (dtype, (16, 24)), kind
    assert getattr(obs, f"overhead_{kind}") is None
for name, size in {
    "joint_positions": 7,
    "joint_velocities": 7,
    "joint_forces": 7,
    "gripper_pose": 7,
    "gripper_joint_positions": 2,
    "gripper_touch_forces": 6,
    "task_low_dim_state": 3,
}.items():
    value = getattr(obs, name)
    assert (value.shape, value.dtype) == ((size,), "float64"), name
assert obs.gripper_matrix.shape == (4, 4)
assert type(obs.gripper_open) is float
assert obs.misc["variation_index"] == 0
assert "front_camera_intrinsics" in obs.misc
assert len(obs.get_low_dim_data()) == 1 + 7 * 4 + 2 + 6 + 3
config = env._obs_config
config.joint_forces = False
assert task.get_observation().joint_forces is None

again = task.get_observation()
assert np.array_equal(obs.front_rgb, again.front_rgb)
moved, *_ = task.step(np.array([1e-4, 0, 0, 0, 0, 0, 0, 1.0]))
assert not np.array_equal(obs.front_rgb, moved.front_rgb)
assert not np.array_equal(obs.wrist_depth, moved.wrist_depth)

config.front_camera.set_all(False)
assert task.step(STILL)[0].front_rgb is None
config.front_camera.point_cloud = True  # not enough for a frame of its own
assert task.get_observation().front_point_cloud is None
config.front_camera.rgb = True
obs = task.get_observation()
assert obs.front_rgb is not None
assert obs.front_depth is None
assert obs.front_point_cloud is not None
assert obs.front_mask is None
config.overhead_camera.rgb = True
assert "Return value: -1" in str(caught(RuntimeError, task.get_observation))
env.shutdown()

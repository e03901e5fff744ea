"""Poses by IK and by planning, within reach and out of it."""

import numpy as np
from double_session import ConfigurationPathError, IKError, InvalidActionError, arms, caught, make

np.random.seed(0)  # a target that lies on the way ends a planned move early
env, task = make(arm=arms.EndEffectorPoseViaIK())
pose = task.reset()[1].gripper_pose
near, far, bent, lost = (np.append(pose, 1) for _ in range(4))
near[:3] += [0.03, -0.02, -0.04]
far[0] += 0.4
bent[3:7] *= 1.1
obs, *_ = task.step(near)
assert np.allclose(obs.gripper_pose[:3], near[:3], atol=0.01)
error = caught(InvalidActionError, task.step, far)
assert "Could not perform IK via Jacobian" in str(error)
assert isinstance(error.__cause__, IKError)
assert "non unit quaternion" in str(caught(InvalidActionError, task.step, bent))
lost[3] = np.nan
assert "non unit quaternion" in str(caught(InvalidActionError, task.step, lost))
env.shutdown()

env, task = make(arm=arms.EndEffectorPoseViaPlanning())
pose = task.reset()[1].gripper_pose
there, outside, inaccessible = (np.append(pose, 1) for _ in range(3))
there[:3] = [0.4, 0.2, 1.0]
outside[0], inaccessible[:2] = 2.0, (0.76, 0.6)
assert np.allclose(task.step(there)[0].gripper_pose[:3], there[:3], atol=1e-3)
assert "outside of workspace" in str(caught(InvalidActionError, task.step, outside))
error = caught(InvalidActionError, task.step, inaccessible)
assert "A path could not be found. " in str(error)
assert isinstance(error.__cause__, ConfigurationPathError)
env.shutdown()

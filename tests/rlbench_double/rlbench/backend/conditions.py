"""When a task has succeeded or failed; `condition_met` returns (met, stop)."""

import numpy as np
from pyrep.backend import rotation
from pyrep.objects import Joint, Object, ProximitySensor
from pyrep.robots.end_effectors.gripper import Gripper


class Condition:
    def condition_met(self) -> tuple[bool, bool]:
        raise NotImplementedError

    def reset(self) -> None:
        pass


class JointCondition(Condition):
    """A joint has moved by more than this from where it was."""

    def __init__(self, joint: Joint, position: float) -> None:
        self._joint, self._position = joint, position
        self._start = joint.get_joint_position()

    def condition_met(self) -> tuple[bool, bool]:
        return abs(self._joint.get_joint_position() - self._start) > self._position, False


class DetectedCondition(Condition):
    def __init__(self, obj: Object, detector: ProximitySensor, negated: bool = False) -> None:
        self._obj, self._detector, self._negated = obj, detector, negated

    def condition_met(self) -> tuple[bool, bool]:
        return self._detector.is_detected(self._obj) != self._negated, False


class NothingGrasped(Condition):
    def __init__(self, gripper: Gripper) -> None:
        self._gripper = gripper

    def condition_met(self) -> tuple[bool, bool]:
        return not self._gripper.get_grasped_objects(), False


class GraspedCondition(Condition):
    def __init__(self, gripper: Gripper, obj: Object) -> None:
        self._gripper, self._obj = gripper, obj

    def condition_met(self) -> tuple[bool, bool]:
        return self._obj in self._gripper.get_grasped_objects(), False


class ToppledCondition(Condition):
    """A thing no longer stands upright. Not one of RLBench's, which has fail conditions alike."""

    def __init__(self, obj: Object) -> None:
        self._obj = obj

    def condition_met(self) -> tuple[bool, bool]:
        upward = rotation.rotate(self._obj.get_quaternion(), (0.0, 0.0, 1.0))
        return bool(upward[2] < np.cos(0.5)), False

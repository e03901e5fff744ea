"""A sliding or turning part of a task."""

from pyrep.objects.object import Object


class Joint(Object):
    def get_joint_position(self) -> float:
        return self._body.joint_position

    def set_joint_position(self, position: float) -> None:
        self._body.joint_position = position

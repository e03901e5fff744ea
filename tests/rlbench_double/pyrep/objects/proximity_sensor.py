"""A ball that detects what is in it; its radius is the size of its body."""

import numpy as np

from pyrep.objects.object import Object


class ProximitySensor(Object):
    def is_detected(self, obj: Object) -> bool:
        distance = np.linalg.norm(obj.get_position() - self.get_position())
        return bool(distance < self._body.size)

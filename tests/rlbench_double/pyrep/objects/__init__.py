"""The objects of a scene."""

from pyrep.objects.dummy import Dummy
from pyrep.objects.joint import Joint
from pyrep.objects.object import Object
from pyrep.objects.proximity_sensor import ProximitySensor
from pyrep.objects.shape import Shape
from pyrep.objects.vision_sensor import VisionSensor

__all__ = ["Dummy", "Joint", "Object", "ProximitySensor", "Shape", "VisionSensor"]

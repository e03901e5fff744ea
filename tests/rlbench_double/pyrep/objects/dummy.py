"""A place without extent: a tip, a waypoint, the base of a task."""

from pyrep.objects.object import Object


class Dummy(Object):
    pass

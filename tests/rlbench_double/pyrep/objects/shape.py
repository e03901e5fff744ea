"""A visible thing."""

from collections.abc import Sequence

from pyrep.objects.object import Object


class Shape(Object):
    def get_color(self) -> list[float]:
        return list(self._body.color)

    def set_color(self, color: Sequence[float]) -> None:
        self._body.color = tuple(color)

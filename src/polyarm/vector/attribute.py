"""What a user has set on envs, as it was then: every env that gets it has a copy of its own."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle


class Attribute:
    """A value of `VectorEnv.set_attr`; what its owner or an env makes of it later reaches nobody.

    Args:
        value: The value; one that cannot be pickled stays itself, and in this process.
    """

    def __init__(self, value: Any) -> None:
        self._value: Any = None
        try:
            self._packed: bytes | None = cloudpickle.dumps(value)
        except Exception:  # noqa: BLE001  objects may raise anything when they are pickled
            self._packed, self._value = None, value

    def copy(self) -> Any:
        """The value as it was."""
        return self._value if self._packed is None else pickle.loads(self._packed)

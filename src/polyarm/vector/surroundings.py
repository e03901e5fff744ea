"""Variables of this process's environment that in-process engines have set, and what they were.

Engines end in any order. A variable has the value of the youngest one that is left; with the last
of them it is again what it was before the first, unless somebody else has changed it since.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, MutableMapping


class Surroundings:
    """An environment that several share.

    Args:
        environment: The environment.
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._environment = environment
        self._before: dict[str, str | None] = {}
        self._set: dict[str, dict[Hashable, str]] = {}

    def enter(self, owner: Hashable, variables: Mapping[str, str]) -> None:
        """Set variables until their owner leaves."""
        for name, value in variables.items():
            if name not in self._set:
                self._before[name] = self._environment.get(name)
            self._set.setdefault(name, {})[owner] = value
            self._environment[name] = value

    def leave(self, owner: Hashable) -> None:
        """Give up the owner's variables; does nothing the second time."""
        for name, values in list(self._set.items()):
            if owner in values:
                ours = list(values.values())[-1]
                del values[owner]
                if self._environment.get(name) == ours:
                    self._change(name, [self._before[name], *values.values()][-1])
                if not values:
                    del self._set[name], self._before[name]

    def _change(self, name: str, value: str | None) -> None:
        self._environment.pop(name, None)
        if value is not None:
            self._environment[name] = value


HERE = Surroundings(os.environ)
"""This process's."""

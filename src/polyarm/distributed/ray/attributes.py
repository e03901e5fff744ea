"""What `set_attr` has set on the slots of a batch, for envs that are built again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from polyarm.distributed.ray.shard import Shard
from polyarm.errors import EnvCallError


class Attributes:
    """Remembers the last value that each slot took, and what slots refused that never took any."""

    def __init__(self) -> None:
        self._taken: dict[str, dict[int, Any]] = defaultdict(dict)
        self._refused: dict[str, dict[int, Any]] = defaultdict(dict)

    def note(self, shard: Shard, name: str, values: Sequence[Any], outcome: Any) -> None:
        """A node was given values.

        Args:
            shard: Its slots.
            name: The attribute.
            values: One for each slot of the whole batch.
            outcome: Its answer, or the error it ended with; a node that was lost has taken nothing.
        """
        if isinstance(outcome, Exception) and not isinstance(outcome, EnvCallError):
            return
        refusing = _refusing(outcome)
        for slot in range(shard.first, shard.stop):
            (self._refused if slot in refusing else self._taken)[name][slot] = values[slot]

    def of(self, shard: Shard) -> dict[str, list[Any]]:
        """What to set on new envs of a node, by name, one value for each of its slots.

        A node sets all slots at once: one that never took a value is given what it refused.
        """
        slots = range(shard.first, shard.stop)
        known = {name: self._refused[name] | self._taken[name] for name in [*self._taken]}
        return {
            name: [values[slot] for slot in slots]
            for name, values in known.items()
            if shard.first in values
        }

    def was_refused(self, name: str, outcome: Any) -> bool:
        """Whether this is an error of those slots alone that had refused the value before."""
        refused = self._refused[name].keys() - self._taken[name].keys()
        return isinstance(outcome, EnvCallError) and _refusing(outcome) <= refused


def _refusing(outcome: Any) -> set[int]:
    refused = outcome.failures if isinstance(outcome, EnvCallError) else ()
    return {failure.slot for failure in refused}

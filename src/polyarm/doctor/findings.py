"""What a check says: one line with a status and, where something is wrong, the fix."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Status = Literal["ok", "hint", "warning", "missing", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's.

    Attributes:
        name: What was looked at.
        status: ``ok``; ``missing`` or ``broken`` if that stands in the way of what was asked for;
            ``hint`` or ``warning`` if it does not.
        text: What was found.
        fix: The command or step that helps.
    """

    name: str
    status: Status
    text: str
    fix: str = ""

    @property
    def fails(self) -> bool:
        """Whether it stands in the way."""
        return self.status in ("missing", "broken")

    def optional(self) -> Finding:
        """The same of something that can be done without."""
        milder: dict[Status, Status] = {"missing": "hint", "broken": "warning"}
        return replace(self, status=milder.get(self.status, self.status))


def install(packages: Iterable[str]) -> str:
    """The command that installs system packages, each once."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get install -y {' '.join(dict.fromkeys(packages))}"


def listed(names: Iterable[str], most: int = 6) -> str:
    """Names with commas between; what is beyond ``most`` is counted."""
    every = list(names)
    rest = len(every) - most
    return ", ".join(every) if rest <= 1 else f"{', '.join(every[:most])} and {rest} more"

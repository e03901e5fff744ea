"""What the doctor is asked about: a suite or everything, and how many workers are planned."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from polyarm import registry
from polyarm.contracts import EnvSpec, Suite
from polyarm.display.rank import local_ranks
from polyarm.doctor import gpu
from polyarm.doctor.findings import Finding
from polyarm.errors import InvalidCall, MissingExtra
from polyarm.vector import host


class Case:
    """One examination's question, and facts that several checks share.

    Args:
        suite: The suite that is asked for; None for all, of which none is needed.
        num_envs: Planned workers of this rank; None for one per core.

    Attributes:
        suite_name: The suite that is asked for, or None.
        suite: It, or None if it cannot be imported.
        num_envs: Planned workers of this rank.
        frames: What became of a test frame, and whether it came out, by the backend's name.

    Raises:
        UnknownName: There is no such suite.
        InvalidCall: No workers are planned.
    """

    def __init__(self, suite: str | None = None, num_envs: int | None = None) -> None:
        if num_envs is not None and num_envs < 1:
            raise InvalidCall(f"--num-envs must be at least 1, found {num_envs}")
        self.suite_name = suite
        self.suite: Suite | None = None
        self.num_envs = num_envs or host.cores()
        self.frames: dict[str, tuple[Finding, bool]] = {}
        if suite is not None:
            location = registry.locate(suite)
            try:
                self.suite = registry.load(location)
            except MissingExtra:
                self.suite = None  # the suites' own check says why

    @property
    def needs_x(self) -> bool:
        """Whether the asked suite insists on an X server."""
        return bool(getattr(self.suite, "needs_x", False)) or self.suite_name == "rlbench"

    @property
    def workers(self) -> int:
        """Planned workers of all ranks on this host."""
        return self.num_envs * local_ranks()

    def concerns(self, suite: str) -> bool:
        """Whether that suite is asked about, alone or with all."""
        return self.suite_name in (None, suite)

    def needs(self, suite: str) -> bool:
        """Whether that suite must work."""
        return self.suite_name == suite

    @cached_property
    def driver(self) -> gpu.Answer:
        """What the NVIDIA driver says; asked once, since it may take seconds to wake."""
        return gpu.query()

    @property
    def gpus(self) -> Sequence[gpu.Gpu]:
        """NVIDIA GPUs, as their driver lists them; none if it cannot."""
        return self.driver.gpus

    def spec(self) -> EnvSpec | None:
        """A typical env of the asked suite, with its usual cameras."""
        if self.suite is None or self.suite_name is None:
            return None
        tasks = self.suite.tasks()
        task = tasks[0].name.partition("/")[2] if tasks else ""
        cameras = tuple(getattr(self.suite, "default_cameras", ()))
        return EnvSpec(self.suite_name, task, cameras=cameras)

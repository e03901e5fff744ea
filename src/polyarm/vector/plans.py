"""What slots and workers are to hold, as the trainer tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyarm.contracts import EnvSpec
from polyarm.vector.attribute import Attribute
from polyarm.vector.settings import SlotSettings


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """What one slot of a worker is to hold.

    Attributes:
        index: Row of the batch.
        location: ``"module:attribute"`` of the suite.
        spec: The env to build.
        attributes: Attributes the user has set on the env, to be set again.
    """

    index: int
    location: str
    spec: EnvSpec
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Everything a worker needs to know, besides its descriptors.

    Attributes:
        worker: Index of the worker.
        generation: How many workers held this index before.
        sequence: Number that announces the finished build; wake-ups count on from it.
        slots: What to build.
        settings: What all slots share.
        describe: Whether the trainer wants the envs' spaces; a restart has the same.
        entropy: Seeds the global generators; None for fresh entropy.
        cpu: Core to be pinned to, or None.
        own_screen: Whether to start an X server before anything is built.
    """

    worker: int
    generation: int
    sequence: int
    slots: tuple[SlotPlan, ...]
    settings: SlotSettings
    describe: bool = True
    entropy: int | None = None
    cpu: int | None = None
    own_screen: bool = False

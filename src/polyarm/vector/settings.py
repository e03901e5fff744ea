"""What all slots of a vector env share, and the block layout that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import gymnasium

from polyarm.vector.layout import BlockLayout, leaves, without_frames

Frames = Literal["last", "every", "none"]
Autoreset = Literal["next_step", "same_step", "disabled"]
Infos = Literal["auto", "full"]


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """What all slots of a vector env share.

    Attributes:
        num_envs: Number of slots, N.
        num_workers: Number of workers; 1 for the in-process engine.
        rows: Ring rows, T.
        frames: Which observations carry frames.
        autoreset: What happens after an episode's end.
        infos: Whether infos travel in the block or whole.
    """

    num_envs: int
    num_workers: int
    rows: int
    frames: Frames
    autoreset: Autoreset
    infos: Infos

    def delivered(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        """An env's observation space as the user sees it."""
        return without_frames(space) if self.frames == "none" else space

    def layout(
        self, observation: gymnasium.Space[Any], action: gymnasium.Space[Any]
    ) -> BlockLayout:
        """The block layout for envs with these spaces."""
        return BlockLayout(
            num_envs=self.num_envs,
            rows=self.rows,
            every=self.frames == "every",
            observation=tuple(leaves(self.delivered(observation), "observation")),
            action=tuple(leaves(action, "action")),
        )

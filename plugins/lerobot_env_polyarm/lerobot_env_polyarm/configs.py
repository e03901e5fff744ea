"""The env types: LeRobot's own configs, whose envs polyarm makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig, LiberoEnv, MetaworldEnv

from polyarm.compat.lerobot import make_env


@dataclass
class MadeByPolyarm:
    """A config whose envs are polyarm's.

    Attributes:
        runner: Who plays evaluations: polyarm, all tasks in one batch, or lerobot's own loop.
    """

    runner: str = "polyarm"

    def __post_init__(self) -> None:
        if self.runner not in ("polyarm", "lerobot"):
            raise ValueError(f"runner is polyarm or lerobot, found {self.runner!r}")
        if self.runner == "lerobot" and self.max_parallel_tasks > 1:
            raise ValueError(
                "max_parallel_tasks > 1 gives wrong scores with runner=lerobot, whose threads "
                "share one policy (huggingface/lerobot#4327); use runner=polyarm"
            )

    def create_envs(
        self,
        n_envs: int,
        use_async_envs: bool = True,  # noqa: FBT001, FBT002  LeRobot's signature
    ) -> dict[str, dict[int, Any]]:
        """``{group: {task_id: VectorEnv}}``; no simulator runs before the first reset."""
        envs = make_env(self, n_envs=n_envs, use_async_envs=use_async_envs)
        for env in chain.from_iterable(tasks.values() for tasks in envs.values()):
            env.runner = self.runner
        return envs


@EnvConfig.register_subclass("polyarm_libero")
@dataclass
class PolyarmLibero(MadeByPolyarm, LiberoEnv):
    """LIBERO, with all of `LiberoEnv`'s fields and its processor."""

    fps: int = 20

    def __post_init__(self) -> None:
        MadeByPolyarm.__post_init__(self)
        LiberoEnv.__post_init__(self)


@EnvConfig.register_subclass("polyarm_metaworld")
@dataclass
class PolyarmMetaworld(MadeByPolyarm, MetaworldEnv):
    """Meta-World, with `MetaworldEnv`'s fields and more.

    Attributes:
        task: A task, a group (easy, medium, hard, very_hard, mt10 …), or several, with commas.
        episode_length: Steps of an episode.
        obs_type: pixels, pixels_agent_pos, or state: the arm's four numbers without any frame.
        task_ids: Places in the group; None for all of it.
        camera_name: Which camera.
        observation_height: Of its frames, in pixels.
        observation_width: The same.
    """

    task: str = "push-v3"
    episode_length: int = 500
    task_ids: list[int] | None = None
    camera_name: str = "corner2"
    observation_height: int = 480
    observation_width: int = 480
    features: dict[str, PolicyFeature] = field(
        default_factory=lambda: {"action": PolicyFeature(type=FeatureType.ACTION, shape=(4,))}
    )

    def __post_init__(self) -> None:
        MadeByPolyarm.__post_init__(self)
        if self.obs_type not in ("pixels", "pixels_agent_pos", "state"):
            raise ValueError(
                f"obs_type is pixels, pixels_agent_pos or state, found {self.obs_type!r}"
            )
        if self.obs_type != "pixels":
            self.features["agent_pos"] = PolicyFeature(type=FeatureType.STATE, shape=(4,))
        if self.obs_type != "state":
            shape = (self.observation_height, self.observation_width, 3)
            self.features["pixels/top"] = PolicyFeature(type=FeatureType.VISUAL, shape=shape)

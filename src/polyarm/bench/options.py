"""What `polyarm bench` is asked for; light to import, so that ``--help`` answers at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of the throughput benchmark: Python API, command line and provenance in one.

    Attributes:
        task: A task (metaworld/reach-v3, gym/CartPole-v1), a set (metaworld/mt10), or several
            of them separated by commas and dealt to the envs in turn.
        num_envs: Number of envs stepped at once.
        num_workers: Worker processes; by default one per env, 0 to run in this process.
        max_steps: Steps each env takes, on average: the run ends when the envs together have
            taken num_envs times as many.
        action_chunk: Actions executed per call, K; more of them cost fewer wake-ups.
        cameras: Cameras whose frames are delivered; without any there is nothing to render.
        image_size: Height and width of each frame in pixels.
        no_rgb: Deliver no frames, whatever the cameras.
        fast: Preset for the engine's top speed: no frames, no copies, the state alone.
        copy_obs: Return independent copies of the observations instead of views of the block.
        profile_timing: Show where the time of the calls went, in this process and in the slowest
            worker of each call.
        json: Print the result as a JSON object on the last line of stdout, and everything else
            on stderr.
        seed: Seed of the episodes and of the random actions.
        display: How frames are rendered: auto, egl, osmesa or none.
    """

    task: str = "metaworld/reach-v3"
    num_envs: int = 8
    num_workers: int | None = None
    max_steps: int = 100
    action_chunk: int = 1
    cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] = (256, 256)
    no_rgb: bool = False
    fast: bool = False
    copy_obs: bool = False
    profile_timing: bool = False
    json: bool = False
    seed: int = 0
    display: str = "auto"

    @property
    def tasks(self) -> list[str]:
        """The names in ``task``."""
        return [name.strip() for name in self.task.split(",") if name.strip()]

    @property
    def renders(self) -> bool:
        """Whether any frames are asked for."""
        return bool(self.cameras) and not (self.no_rgb or self.fast)

"""``polyarm debug``: a few episodes with the first env filmed, to see what a policy does."""

from __future__ import annotations

from dataclasses import dataclass

from polyarm.rollout.options import EvalOptions


@dataclass(frozen=True, slots=True)
class DebugOptions:
    """Options of a debugging run.

    Attributes:
        task: A task or set of tasks, as for eval.
        policy: The policy, as for eval.
        num_envs: Envs that run at once.
        episodes: Episodes per task.
        max_steps: The episodes' horizon in steps; by default the suite's.
        chunk: Actions per decision of the built-in policies.
        cameras: Cameras that are filmed; by default the suite's own choice.
        image_size: Height and width of each frame in pixels.
        output_dir: Folder for videos, results and report.
        video_all: Film every env, not only the first.
        video_stride: Every how many steps a frame is filmed.
        fps: Frames per second of the videos.
        realtime: Play videos at the speed of simulated time, whatever the stride.
        video_layout: side: all cameras in one file; separate: a file for each.
    """

    task: str = "metaworld/reach-v3"
    policy: str = "expert"
    num_envs: int = 4
    episodes: int = 4
    max_steps: int | None = None
    chunk: int = 1
    cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] = (256, 256)
    output_dir: str = "runs/debug"
    video_all: bool = False
    video_stride: int = 4
    fps: float = 20.0
    realtime: bool = False
    video_layout: str = "side"


def run(options: DebugOptions) -> int:
    """Play and film; returns the exit code. What was in the folder is overwritten."""
    from polyarm.cli import evaluate

    settings = () if options.max_steps is None else (f"max_steps={options.max_steps}",)
    evaluated = EvalOptions(
        policy=options.policy,
        task=options.task,
        episodes=options.episodes,
        out=options.output_dir,
        num_envs=options.num_envs,
        chunk=options.chunk,
        cameras=options.cameras,
        image_size=options.image_size,
        suite_options=settings,
        record="all" if _can_be_filmed(options) else "none",
        fps=options.fps,
        video_stride=options.video_stride,
        realtime=options.realtime,
        video_layout=options.video_layout,  # type: ignore[arg-type]
        fresh=True,
    )
    observed = None if options.video_all else (0,)
    return evaluate.run(evaluated, observed_slots=observed, resumable=False)


def _can_be_filmed(options: DebugOptions) -> bool:
    """Whether there are cameras: named, or chosen by the suites."""
    from polyarm import registry

    names = [name.strip() for name in options.task.split(",")]
    suites = {name.partition("/")[0] for name in names if "/" in name}
    chosen = [getattr(registry.load(suite), "default_cameras", ()) for suite in suites]
    return bool(options.cameras) or (bool(chosen) and all(chosen))

"""``polyarm debug``: a few episodes with the first env filmed, to see what a policy does."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyarm.rollout.options import OF_SUITE, EvalOptions, NamesTasks


@dataclass(frozen=True, slots=True)
class DebugOptions(NamesTasks):
    """Options of a debugging run.

    Attributes:
        task: A task or set of tasks, as for eval.
        policy: The policy, as for eval.
        num_envs: Envs that run at once; under torchrun those of each rank.
        num_envs_total: Envs of all ranks of torchrun together, instead of num_envs.
        episodes: Episodes per task; by default as many as there are envs.
        max_steps: The episodes' horizon in steps; by default the suite's.
        chunk: Actions per decision of the built-in policies.
        cameras: Cameras that are filmed; by default the suite's own choice.
        image_size: Height and width of each frame in pixels.
        arm_mode: How actions move the arm, for suites with a choice, such as rlbench.
        robot_setup: The arm, for suites with a choice, such as rlbench.
        idle_fps: How often an idle simulator redraws, for suites with a choice.
        fast: Film nothing; arm_mode ik and idle_fps 0 where a suite has them. What contradicts it
            is an error.
        suite_options: Options of the suite as NAME=VALUE, such as success=last.
        output_dir: Folder for videos, results and report; with several ranks, a folder for each
            in it.
        video_all: Film every env, not only the first.
        video_stride: Every how many steps a frame is filmed.
        fps: Frames per second of the videos.
        no_video: Film nothing.
        realtime: Play videos at the speed of simulated time, whatever the stride.
        video_layout: side: all cameras in one file; separate: a file for each.
        seed: Selects the stream of episodes.
        display: How frames are rendered: auto, egl, osmesa, xvfb, xvfb-shared, external or none.
        ddp_bind_gpu: Under torchrun, bind this rank to the GPU of its local number: its envs
            render there, and its policy computes there.
        policy_gpus: GPUs that ranks compute on, such as 0-3, dealt to them in turn.
        render_gpus: GPUs that ranks render on, such as 4-7 or 4,6, dealt to them in turn.
    """

    task: str = "metaworld/reach-v3"
    policy: str = "expert"
    num_envs: int = 4
    num_envs_total: int | None = None
    episodes: int | None = None
    max_steps: int | None = field(default=None, metadata=OF_SUITE)
    chunk: int = 1
    cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] = (256, 256)
    arm_mode: str | None = field(default=None, metadata=OF_SUITE)
    robot_setup: str | None = field(default=None, metadata=OF_SUITE)
    idle_fps: float | None = field(default=None, metadata=OF_SUITE)
    fast: bool = False
    suite_options: tuple[str, ...] = ()
    output_dir: str = "runs/debug"
    video_all: bool = False
    video_stride: int = 4
    fps: float = 20.0
    no_video: bool = False
    realtime: bool = False
    video_layout: str = "side"
    seed: int = 0
    display: str = "auto"
    ddp_bind_gpu: bool = False
    policy_gpus: str | None = None
    render_gpus: str | None = None


def run(options: DebugOptions) -> int:
    """Play and film; returns the exit code. What was in the folder is overwritten."""
    from polyarm.cli import console, evaluate, ranks
    from polyarm.distributed.ranks import Share
    from polyarm.rollout.filming import cameras_to_film
    from polyarm.rollout.suite_settings import check_fast, specs, suite_settings

    share = Share.current(options)
    ranks.announce(share, options, console.console(stderr=True))
    settings = suite_settings(options)
    built = specs(options.tasks, settings)
    if options.fast:
        check_fast(built)
    filmed = all(cameras_to_film(options.cameras, spec.suite) for spec in built)
    episodes = share.num_envs if options.episodes is None else options.episodes
    evaluated = EvalOptions(
        policy=options.policy,
        task=options.task,
        episodes=episodes,
        # Ranks play other episodes than one another.
        start=share.before if options.episodes is None else share.rank.number * episodes,
        seed=options.seed,
        out=share.rank.folder(options.output_dir),
        num_envs=share.num_envs,
        chunk=options.chunk,
        cameras=options.cameras,
        image_size=options.image_size,
        display=options.display,
        suite_options=tuple(f"{name}={value}" for name, value in settings.items()),
        record="all" if filmed and not (options.no_video or options.fast) else "none",
        fps=options.fps,
        video_stride=options.video_stride,
        realtime=options.realtime,
        video_layout=options.video_layout,  # type: ignore[arg-type]
        fresh=True,
    )
    observed = None if options.video_all else (0,)
    return evaluate.play(evaluated, observed_slots=observed, resumable=False)

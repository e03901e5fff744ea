"""What `polyarm bench` is asked for; light to import, so that ``--help`` answers at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyarm.rollout.options import OF_SUITE, NamesTasks


@dataclass(frozen=True, slots=True)
class BenchOptions(NamesTasks):
    """Options of the throughput benchmark: Python API, command line and provenance in one.

    Attributes:
        task: A task (metaworld/reach-v3, gym/CartPole-v1), a set (metaworld/mt10), or several
            of them separated by commas and dealt to the envs in turn.
        num_envs: Number of envs stepped at once; under torchrun or srun those of each rank.
        num_envs_total: Envs of all ranks together, instead of num_envs.
        num_workers: Worker processes; by default one per env, 0 to run in this process.
        max_steps: Steps each env takes, on average: the run ends when the envs together have
            taken num_envs times as many.
        action_chunk: Actions executed per call, K; more of them cost fewer wake-ups.
        pos_noise_std: Where a suite takes poses (rlbench), actions are a random walk from the
            current one, and this is the standard deviation of its steps in metres, 0.01 by
            default. Elsewhere actions are uniform.
        cameras: Cameras whose frames are delivered; without any there is nothing to render.
        image_size: Height and width of each frame in pixels.
        no_rgb: Deliver no frames and film nothing, whatever the cameras.
        fast: Preset for top speed: no frames, no videos, no copies; arm_mode ik and idle_fps 0
            where a suite has them; these, or copy_obs, given otherwise are an error.
        copy_obs: Return independent copies of the observations instead of views of the block.
        arm_mode: How actions move the arm: ik, planning, joint_velocity …, for suites with a
            choice (rlbench).
        robot_setup: The arm, for suites with a choice: panda, sawyer, ur5, jaco or mico (rlbench).
        idle_fps: How often an idle simulator redraws, for suites with a choice
            (rlbench).
        suite_options: Options of the suite as NAME=VALUE, such as success=last.
        record: Film the first env, into runs/bench unless output_dir says otherwise.
        output_dir: Film the first env, into the folder "videos" of this one.
        video_all: Film every env, not only the first.
        video_stride: Every how many steps a frame is filmed.
        fps: Frames per second of the videos.
        no_video: Film nothing, whatever else is said.
        profile_timing: Show where the time of the calls went, in this process and in the slowest
            worker of each call.
        json: Print the result as a JSON object on the last line of stdout, and everything else
            on stderr.
        seed: Seed of the episodes and of the random actions.
        display: How frames are rendered: auto, egl, osmesa, xvfb, xvfb-shared, external or none.
        ddp_bind_gpu: Under torchrun, bind this rank to the GPU of its local number. A benchmark
            computes nothing there, so this only chooses the GPU that renders.
        policy_gpus: GPUs that ranks compute on, such as 0-3, dealt to them in turn; a benchmark
            computes nothing.
        render_gpus: GPUs that ranks render on, such as 4-7 or 4,6, dealt to them in turn.
    """

    task: str = "metaworld/reach-v3"
    num_envs: int = 8
    num_envs_total: int | None = None
    num_workers: int | None = None
    max_steps: int = 100
    action_chunk: int = 1
    pos_noise_std: float | None = None
    cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] = (256, 256)
    no_rgb: bool = False
    fast: bool = False
    copy_obs: bool = False
    arm_mode: str | None = field(default=None, metadata=OF_SUITE)
    robot_setup: str | None = field(default=None, metadata=OF_SUITE)
    idle_fps: float | None = field(default=None, metadata=OF_SUITE)
    suite_options: tuple[str, ...] = ()
    record: bool = False
    output_dir: str | None = None
    video_all: bool = False
    video_stride: int = 1
    fps: float = 20.0
    no_video: bool = False
    profile_timing: bool = False
    json: bool = False
    seed: int = 0
    display: str = "auto"
    ddp_bind_gpu: bool = False
    policy_gpus: str | None = None
    render_gpus: str | None = None

    @property
    def renders(self) -> bool:
        """Whether any frames are delivered."""
        return bool(self.cameras) and not (self.no_rgb or self.fast)

    @property
    def films(self) -> bool:
        """Whether episodes are filmed."""
        asked = self.record or self.output_dir is not None or self.video_all
        return asked and not (self.no_video or self.no_rgb or self.fast)

"""What `polyarm train` is asked for; light to import, so that ``--help`` answers at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyarm.rollout.options import OF_SUITE, NamesTasks


@dataclass(frozen=True, slots=True)
class TrainOptions(NamesTasks):
    """Options of the training loop: Python API and command line in one.

    Attributes:
        task: A task (metaworld/reach-v3, rlbench/open_drawer, gym/Pendulum-v1), a set, or several
            of them separated by commas and dealt to the envs in turn.
        num_envs: Number of envs stepped at once; under torchrun those of each rank.
        num_envs_total: Envs of all ranks of torchrun together, instead of num_envs.
        num_workers: Worker processes; by default one per env, 0 to run in this process.
        train_updates: Updates of the policy, each from one call of the envs.
        train_lr: Learning rate of Adam.
        train_hidden: Width of the policy's two hidden layers.
        action_chunk: Steps of each env per update.
        max_steps: The episodes' horizon in steps; by default the suite's.
        arm_mode: How actions move the arm, for suites with a choice, such as rlbench. Poses are
            learnt as displacements of the hand, which does not turn.
        robot_setup: The arm, for suites with a choice, such as rlbench.
        idle_fps: How often an idle simulator redraws, for suites with a choice.
        fast: The preset of bench and debug: arm_mode ik and idle_fps 0 where a suite has them;
            there are no frames in any case. What contradicts it is an error.
        suite_options: Options of the suite as NAME=VALUE, such as success=last.
        device: Where the policy computes: auto (CUDA where there is any), cpu, cuda, cuda:1 …
        seed: Seed of the episodes, of the policy and of its noise.
        display: What a simulator without frames runs on; auto is none.
        ddp_bind_gpu: Under torchrun, bind this rank to the GPU of its local number.
    """

    task: str = "metaworld/reach-v3"
    num_envs: int = 8
    num_envs_total: int | None = None
    num_workers: int | None = None
    train_updates: int = 20
    train_lr: float = 3e-4
    train_hidden: int = 256
    action_chunk: int = 16
    max_steps: int | None = field(default=None, metadata=OF_SUITE)
    arm_mode: str | None = field(default=None, metadata=OF_SUITE)
    robot_setup: str | None = field(default=None, metadata=OF_SUITE)
    idle_fps: float | None = field(default=None, metadata=OF_SUITE)
    fast: bool = False
    suite_options: tuple[str, ...] = ()
    device: str = "auto"
    seed: int = 0
    display: str = "auto"
    ddp_bind_gpu: bool = False

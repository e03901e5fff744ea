"""What `polyarm train` is asked for; light to import, so that ``--help`` answers at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from polyarm.errors import InvalidCall
from polyarm.rollout.options import LAST_SEED, OF_SUITE, NamesTasks, seconds

_COUNTS = ("train_updates", "train_hidden", "horizon", "action_chunk", "epochs", "minibatches")
_NOT_NEGATIVE = ("eval_every", "checkpoint_every", "entropy", "value_weight", "seed")
_POSITIVE = ("train_lr", "clip", "max_grad_norm", "first_std")
_MAY_CHANGE = (
    *("train_updates", "num_workers", "out", "fresh", "stop_after", "report_to", "device"),
    *("eval_every", "eval_episodes", "checkpoint_every", "display"),
    *("ddp_bind_gpu", "policy_gpus", "render_gpus"),
)


@dataclass(frozen=True, slots=True)
class TrainOptions(NamesTasks):
    """Options of PPO: Python API and command line in one.

    Attributes:
        task: A task (metaworld/reach-v3, rlbench/open_drawer, gym/CartPole-v1), a set, or several
            of them separated by commas and dealt to the envs in turn.
        num_envs: Number of envs stepped at once; under torchrun those of each rank.
        num_envs_total: Envs of all ranks of torchrun together, instead of num_envs.
        num_workers: Worker processes; by default one per env, 0 to run in this process. As many as
            there are cores suit cheap envs.
        train_updates: Updates of the policy, each from horizon decisions of every env.
        train_lr: Learning rate of Adam.
        train_lr_end: The learning rate of the last update, reached in a straight line; it never
            rises above train_lr. None keeps it as it is.
        train_hidden: Width of the two hidden layers of actor and critic.
        horizon: Decisions of each env per update.
        action_chunk: Actions per decision, executed one after the other.
        epochs: How often each update goes over its data.
        minibatches: Gradient steps per epoch.
        gamma: Discount of rewards, per env step.
        gae_lambda: How far advantages look ahead (GAE), per decision.
        clip: How far a probability may move in one update, as a share of itself.
        clip_end: Where that goes until the last update; by default it stays.
        entropy: Weight of the bonus for entropy.
        entropy_end: Where that goes until the last update; by default it stays.
        value_weight: Weight of the critic's loss.
        max_grad_norm: Longest gradient that is followed; longer ones are shortened to it.
        first_std: Standard deviation of real-valued actions at first, where 1 is half their range.
        max_steps: The episodes' horizon in steps while training; by default the suite's.
        arm_mode: How actions move the arm, for suites with a choice, such as rlbench. Poses are
            learnt as displacements of the hand, which does not turn.
        robot_setup: The arm, for suites with a choice, such as rlbench.
        idle_fps: How often an idle simulator redraws, for suites with a choice.
        fast: The preset of bench and debug: arm_mode ik and idle_fps 0 where a suite has them.
            What contradicts it is an error.
        suite_options: Options of the suite as NAME=VALUE, such as reward_version=v1. Training goes
            on after a success where a suite can (terminate_on_success), unless it is given here.
        cameras: Cameras whose frames the policy sees, besides the state; by default none.
        image_size: Height and width of each frame in pixels.
        eval_every: Updates between evaluations, by the suite's own rules and with the most likely
            actions, on episodes that no training plays; 0 for none.
        eval_episodes: Episodes of each evaluation, per task.
        out: Folder for checkpoint, metrics, curve and logs; by default runs/ppo-TASK. The same
            command again goes on from the checkpoint.
        checkpoint_every: Updates between checkpoints; 0 for one at the end only.
        fresh: Forget what an earlier run has left in the folder. A job that is started again goes
            on instead, or is refused where it cannot tell.
        stop_after: Write a checkpoint and stop after so long, such as 3h50m.
        report_to: Also log to tensorboard, wandb or trackio; several are separated by commas.
        amp: Have networks compute in bfloat16 on a GPU; without it, in float32 as on a CPU.
        device: Where the policy computes: auto (CUDA where there is any), cpu, cuda, cuda:1 …
        seed: Seed of the episodes, of the policy and of its noise.
        display: What a simulator runs on, or renders with; auto is none where nothing renders.
        ddp_bind_gpu: Under torchrun, bind this rank to the GPU of its local number: its envs
            render there, and its policy learns there.
        policy_gpus: GPUs that ranks learn on, such as 0-3, dealt to them in turn.
        render_gpus: GPUs that ranks render on, such as 4-7 or 4,6, dealt to them in turn.
    """

    task: str = "metaworld/reach-v3"
    num_envs: int = 8
    num_envs_total: int | None = None
    num_workers: int | None = None
    train_updates: int = 150
    train_lr: float = 1e-3
    train_lr_end: float | None = 1e-4
    train_hidden: int = 64
    horizon: int = 256
    action_chunk: int = 1
    epochs: int = 8
    minibatches: int = 8
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    clip_end: float | None = None
    entropy: float = 0.0
    entropy_end: float | None = None
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    first_std: float = 0.6
    max_steps: int | None = field(default=None, metadata=OF_SUITE)
    arm_mode: str | None = field(default=None, metadata=OF_SUITE)
    robot_setup: str | None = field(default=None, metadata=OF_SUITE)
    idle_fps: float | None = field(default=None, metadata=OF_SUITE)
    fast: bool = False
    suite_options: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] | None = None
    eval_every: int = 20
    eval_episodes: int = 50
    out: str | None = None
    checkpoint_every: int = 20
    fresh: bool = False
    stop_after: str | None = None
    report_to: str | None = None
    amp: bool = True
    device: str = "auto"
    seed: int = 0
    display: str = "auto"
    ddp_bind_gpu: bool = False
    policy_gpus: str | None = None
    render_gpus: str | None = None

    def check(self) -> None:
        """Refuse what makes no sense.

        Raises:
            InvalidCall: Which option, and what was found.
        """
        if not self.tasks:
            raise InvalidCall(
                "no task was given; `polyarm suites` lists the suites and their tasks"
            )
        for name in _COUNTS:
            if (found := getattr(self, name)) < 1:
                raise InvalidCall(f"{name} must be at least 1, found {found}")
        if self.eval_every and self.eval_episodes < 1:
            raise InvalidCall(f"eval_episodes must be at least 1, found {self.eval_episodes}")
        for name in _POSITIVE:
            if not (math.isfinite(found := getattr(self, name)) and found > 0):
                raise InvalidCall(f"{name} must be above 0, found {found}")
        for name in (*_NOT_NEGATIVE, "train_lr_end", "clip_end", "entropy_end"):
            found = getattr(self, name)
            if found is not None and not (math.isfinite(found) and found >= 0):
                raise InvalidCall(f"{name} must not be below 0, found {found}")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= (found := getattr(self, name)) <= 1:
                raise InvalidCall(f"{name} must be between 0 and 1, found {found}")
        if self.seed >= HELD_OUT_SEED:
            raise InvalidCall(f"seed must be below {HELD_OUT_SEED}, found {self.seed}")
        seconds(self.stop_after)

    @property
    def last_lr(self) -> float | None:
        """The learning rate of the last update; it never rises. None: as at first."""
        return None if self.train_lr_end is None else min(self.train_lr_end, self.train_lr)

    @property
    def sinks(self) -> list[str]:
        """The names in ``report_to``."""
        return [name.strip() for name in (self.report_to or "").split(",") if name.strip()]

    def shaping(self) -> dict[str, Any]:
        """The options that must be the same for a run to go on from a checkpoint."""
        names = [one.name for one in fields(self) if one.name not in _MAY_CHANGE]
        return {name: getattr(self, name) for name in names}


HELD_OUT_SEED = LAST_SEED
"""The stream of episodes that evaluations play; no training can have this seed."""


def scheduled(start: float, end: float | None, progress: float) -> float:
    """A number on its way in a straight line from ``start`` to ``end``, at 0 … 1 of the way."""
    return start if end is None else start + (end - start) * min(1.0, max(0.0, progress))

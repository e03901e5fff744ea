"""LIBERO's own envs, driven by published rules written out step by step; saves what it saw.

A script for a process of its own, because LIBERO draws into whichever GL context is current::

    python libero_reference.py FOLDER

It reads ``FOLDER/plans.json`` and writes ``FOLDER/<key>.npz`` for each plan, in order. Nothing of
polyarm's suite takes part in it, except to say where the assets are.

The envs are LIBERO's own. Where nobody looks at frames, textures are not uploaded and nothing is
drawn, which saves most of the time; what physics can notice of a render context, the forward pass
at its creation, stays. A plan that looks always leaves out nothing.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

CAMERAS = ("agentview", "robot0_eye_in_hand")
FEELINGS = ("eef_pos", "eef_quat", "gripper_qpos", "gripper_qvel", "joint_pos", "joint_vel")
OPEN = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0]

ACTIONS = np.random.default_rng(0).uniform(-1, 1, (64, 7)).astype(np.float32)
"""What the policy says, in LIBERO's language."""

POSES = np.random.default_rng(1).uniform(-0.05, 0.05, (64, 7)).astype(np.float32)
POSES += np.array([-0.1, 0.0, 1.1, 2.8, 0.3, -0.2, 0.0], np.float32)
"""What it says if actions are poses of the hand."""


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Attributes:
        rules: Name of a function in `RULES`.
        task: LIBERO's suite and the task's place in it, ``"libero_goal/3"``.
        episodes: Which episodes are recorded.
        num_actions: Policy steps in each.
        seeds: Of the env; by episode where the rules seed every episode.
        look: ``"never"``, ``"first"`` (the policy's first observation) or ``"always"``.
        image_size: Height and width of frames.
        forced: ``(step, joint, position)``: joints that are moved before a policy step.
        control: ``"relative"``, ``"absolute"`` (commands are Python floats) or
            ``"absolute float32"`` (they are arrays of float32).
    """

    rules: str
    task: str
    episodes: tuple[int, ...] = (0,)
    num_actions: int = 0
    seeds: tuple[int, ...] = (0,)
    look: str = "never"
    image_size: tuple[int, int] = (256, 256)
    forced: tuple[tuple[int, str, tuple[float, ...]], ...] = ()
    control: str = "relative"

    @property
    def key(self) -> str:
        """Tells plans apart."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]


Episodes = Iterator[tuple[int, Any, Any]]
"""Number, env and the observation before the policy's first step, of each episode."""


def oft(plan: Plan) -> Episodes:
    """OpenVLA-OFT; openpi, RIPT's OFT flavour and vla-eval do the same with their own seeds."""
    env = construct(plan)
    env.seed(plan.seeds[0])
    for episode in range(max(plan.episodes) + 1):
        wanted = episode in plan.episodes
        with Drawing.on(wanted and plan.look != "never"):
            env.reset()
        if not wanted:
            continue  # stepping draws no random numbers, and the next reset loads a new model
        env.set_init_state(init_states(plan)[episode])
        for _ in range(9):
            env.step(OPEN)
        with Drawing.on(plan.look != "never"):
            obs, _, _, _ = env.step(OPEN)
        yield episode, env, obs
    env.close()


def simplevla(plan: Plan) -> Episodes:
    """SimpleVLA-RL: a new env for every episode, always seeded alike."""
    for episode in plan.episodes:
        env = construct(plan)
        env.seed(plan.seeds[0])
        with Drawing.on(plan.look != "never"):
            env.reset()
        env.set_init_state(init_states(plan)[episode])
        for _ in range(9):
            env.step(OPEN)
        with Drawing.on(plan.look != "never"):
            obs, _, _, _ = env.step(OPEN)
        yield episode, env, obs
        env.close()
        del env
        gc.collect()


def ript_quest(plan: Plan) -> Episodes:
    """RIPT's QueST flavour: eight envs in parallel, so that the first eight episodes are round 0.

    It never seeds; here every episode's reset is, so that it can be compared. The observation
    that it hands to the policy first is older than the initial state; the one after it is taken.
    """
    for episode, seed in zip(plan.episodes, plan.seeds, strict=True):
        assert episode < 8
        env = construct(plan, ignore_done=True)
        env.reset()  # the vector wrapper does this once
        for _ in range(10):
            env.step(np.zeros(7))
        np.random.seed(seed)
        with Drawing.on(plan.look != "never"):
            env.reset()
        for _ in range(10):
            env.step(np.zeros(7))
        with Drawing.on(plan.look != "never"):
            obs = env.set_init_state(init_states(plan)[episode])
        yield episode, env, obs
        env.close()
        del env
        gc.collect()


def lerobot(plan: Plan) -> Episodes:
    """LeRobot with one env: it is reset when it is made, and seeded before every episode."""
    env = construct(plan, control_freq=20, hard_reset=True)
    env.reset()
    for episode in range(max(plan.episodes) + 1):
        wanted = episode in plan.episodes
        env.seed(plan.seeds[0] + episode)
        with Drawing.on(wanted and plan.look != "never"):
            env.reset()
        if not wanted:
            continue
        env.set_init_state(init_states(plan)[episode])
        for _ in range(9):
            env.step(OPEN)
        with Drawing.on(plan.look != "never"):
            obs, _, _, _ = env.step(OPEN)
        yield episode, env, obs
    env.close()


RULES: dict[str, Callable[[Plan], Episodes]] = {
    "oft": oft,
    "simplevla": simplevla,
    "ript_quest": ript_quest,
    "lerobot": lerobot,
}


def construct(plan: Plan, **options: Any) -> Any:
    """LIBERO's env of a task, as all evaluations make it."""
    from libero.libero.envs import OffScreenRenderEnv

    suite, number = benchmark(plan)
    height, width = plan.image_size
    return OffScreenRenderEnv(
        bddl_file_name=suite.get_task_bddl_file_path(number),
        camera_heights=height,
        camera_widths=width,
        **options,
    )


def init_states(plan: Plan) -> Any:
    """The task's initial states."""
    suite, number = benchmark(plan)
    return suite.get_task_init_states(number)


def benchmark(plan: Plan) -> tuple[Any, int]:
    """LIBERO's suite, and the task's place in it."""
    from libero.libero.benchmark import get_benchmark

    name, number = plan.task.split("/")
    return get_benchmark(name)(), int(number)


def run(plan: Plan) -> dict[str, Any]:
    """Everything seen: ``"<episode>/<what>"``, with one row per observation, and the language."""
    suite, number = benchmark(plan)
    seen: dict[str, Any] = {"language": suite.get_task(number).language}
    for episode, env, first in RULES[plan.rules](plan):
        rows = [row(env, first, 0.0, done=False, plan=plan, step=0)]
        if plan.control != "relative":
            for robot in env.robots:
                robot.controller.use_delta = False
        for step in range(plan.num_actions):
            force(env, plan, step)
            obs, reward, done, _ = env.step(command(plan, step))
            rows.append(row(env, obs, reward, done=done, plan=plan, step=step + 1))
        for name in rows[0]:
            seen[f"{episode}/{name}"] = np.stack([one[name] for one in rows if name in one])
    return seen


def row(env: Any, obs: Any, reward: float, *, done: bool, plan: Plan, step: int) -> dict[str, Any]:
    """What there is to be seen after a step."""
    controller = env.robots[0].controller
    seen = {
        "states": env.sim.get_state().flatten(),
        "body_pos": env.sim.model.body_pos.copy(),
        "body_quat": env.sim.model.body_quat.copy(),
        "reward": np.array(reward),
        "done": np.array(done),
        "eef_mat": np.array(controller.ee_ori_mat),
        **{name: obs[f"robot0_{name}"].copy() for name in FEELINGS},
    }
    if plan.look == "always" or (plan.look == "first" and step == 0):
        seen.update({f"frames/{camera}": obs[f"{camera}_image"].copy() for camera in CAMERAS})
    return seen


def command(plan: Plan, step: int) -> Any:
    """The policy's action as the env is given it."""
    if plan.control == "relative":
        return ACTIONS[step].tolist()
    return POSES[step] if plan.control == "absolute float32" else POSES[step].tolist()


def force(env: Any, plan: Plan, step: int) -> None:
    """Move what the plan says."""
    for when, joint, position in plan.forced:
        if when == step:
            value = position[0] if len(position) == 1 else np.array(position)
            env.sim.data.set_joint_qpos(joint, value)


class Drawing:
    """Whether LIBERO draws; it is made to ask here."""

    wanted = False

    @classmethod
    @contextlib.contextmanager
    def on(cls, wanted: bool = True) -> Iterator[None]:
        """Draw for a while, if it is wanted or was wanted anyway."""
        before = cls.wanted
        cls.wanted = before or wanted
        try:
            yield
        finally:
            cls.wanted = before

    @classmethod
    def install(cls) -> None:
        """Have robosuite ask before it uploads textures and before it draws."""
        from robosuite.utils.binding_utils import MjRenderContext, MjSim

        upload, render = MjRenderContext._set_mujoco_context_and_buffers, MjSim.render

        def upload_if_wanted(context: Any) -> None:
            if cls.wanted:
                upload(context)
            else:
                context.con = _NoTextures()

        def render_if_wanted(sim: Any, *, width: int, height: int, **options: Any) -> Any:
            if cls.wanted:
                return render(sim, width=width, height=height, **options)
            return np.zeros((height, width, 3), np.uint8)

        MjRenderContext._set_mujoco_context_and_buffers = upload_if_wanted
        MjSim.render = render_if_wanted


class _NoTextures:
    def free(self) -> None: ...


def prepare() -> None:
    """Let LIBERO find its assets."""
    from polyarm.suites.libero.assets import checked_folder, prepare_libero_config

    prepare_libero_config()
    import libero.libero

    libero.libero._assets_path_cache = str(checked_folder())
    Drawing.install()


def read_plans(folder: Path) -> list[Plan]:
    """The plans in a folder."""
    plans = json.loads((folder / "plans.json").read_text())
    return [Plan(**{name: _frozen(value) for name, value in plan.items()}) for plan in plans]


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def main(folder: Path) -> None:
    """Run all plans; a file appears when it is complete."""
    prepare()
    for plan in read_plans(folder):
        draft = folder / "draft"
        try:
            with draft.open("wb") as file, Drawing.on(plan.look == "always"):
                np.savez(file, **run(plan))
            draft.rename(folder / f"{plan.key}.npz")
        except Exception:  # noqa: BLE001  the tests of the other plans go on
            draft.write_text(traceback.format_exc())
            draft.rename(folder / f"{plan.key}.error")
        gc.collect()  # an env's GL context must be gone before the next one comes


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Writes demonstrations to disk in the layout of RLBench's dataset generator.

<root>/<task>/variation<k>/episodes/episode<j>, and the same episodes in the order they were made
under <root>/<task>/all_variations/episodes with their variation, as PerAct's generator has them.

    python -m double_dataset ROOT reach_target --episodes 0:2 7:1 --seed 5 --camera front
"""

import argparse
import os
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
KINDS = ("rgb", "depth", "mask", "point_cloud")


def write_dataset(
    root: Path,
    task_name: str,
    episodes: dict[int, int],
    *,
    seed: int = 0,
    cameras: Sequence[str] = (),
    image_size: tuple[int, int] = (32, 32),
) -> None:
    """Demonstrate a task and store it. Launches the process's simulator and shuts it down.

    Args:
        root: The dataset's folder; created if need be.
        task_name: In snake_case.
        episodes: How many episodes of each variation.
        seed: Of np.random, before the first of them.
        cameras: Those whose frames are stored; the files of others are empty.
        image_size: (width, height).
    """
    from rlbench import name_to_task_class

    env = _make_env(cameras, image_size)
    env.launch()
    task = env.get_task(name_to_task_class(task_name))
    np.random.seed(seed)
    everything = Path(root, task_name, "all_variations", "episodes")
    made = 0
    for variation, count in episodes.items():
        task.set_variation(variation)
        descriptions, _ = task.reset()  # the first episode of a task is labelled variation 0
        folder = Path(root, task_name, f"variation{variation}")
        for number in range(count):
            (demo,) = task.get_demos(1, live_demos=True)
            episode = folder / "episodes" / f"episode{number}"
            _save(demo, episode)
            together = everything / f"episode{made}"
            shutil.copytree(episode, together, copy_function=os.link)
            (together / "variation_number.pkl").write_bytes(pickle.dumps(variation))
            for place in (together, folder):
                dumped = pickle.dumps(descriptions)
                (place / "variation_descriptions.pkl").write_bytes(dumped)
            made += 1
    env.shutdown()


def _make_env(cameras: Sequence[str], image_size: tuple[int, int]) -> object:
    from rlbench import Environment, ObservationConfig
    from rlbench.action_modes.action_mode import MoveArmThenGripper
    from rlbench.action_modes.arm_action_modes import JointPosition
    from rlbench.action_modes.gripper_action_modes import Discrete

    config = ObservationConfig()
    config.set_all_low_dim(True)
    config.set_all_high_dim(False)
    for camera in cameras:
        getattr(config, f"{camera}_camera").set_all(True)
        getattr(config, f"{camera}_camera").masks_as_one_channel = False
        getattr(config, f"{camera}_camera").image_size = image_size
    return Environment(MoveArmThenGripper(JointPosition(), Discrete()), obs_config=config)


def _save(demo: object, episode: Path) -> None:
    """Images to files, everything else into one pickle."""
    from rlbench.backend.cameras import PLACES

    for camera in PLACES:
        for kind in KINDS:
            if kind != "point_cloud":
                (episode / f"{camera}_{kind}").mkdir(parents=True)
        for index in range(len(demo)):
            for kind in KINDS:
                field = f"{camera}_{kind}"
                pixels = getattr(demo[index], field)
                if kind != "point_cloud":
                    _write_image(episode / field / f"{index}.png", kind, pixels)
                setattr(demo[index], field, None)
    (episode / "low_dim_obs.pkl").write_bytes(pickle.dumps(demo))


def _write_image(path: Path, kind: str, pixels: np.ndarray | None) -> None:
    if pixels is None:
        path.touch()
        return
    from PIL import Image
    from rlbench.backend.utils import float_array_to_rgb_image

    if kind == "depth":
        pixels = float_array_to_rgb_image(pixels)
    elif kind == "mask":
        pixels = np.rint(pixels * 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("task")
    parser.add_argument("--episodes", nargs="+", default=["0:1"], help="variation:count")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--camera", nargs="*", default=[])
    given = parser.parse_args()
    os.environ.setdefault("COPPELIASIM_ROOT", str(HERE / "coppeliasim"))
    if not given.camera:
        os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    pairs = [entry.split(":") for entry in given.episodes]
    episodes = {int(variation): int(count) for variation, count in pairs}
    write_dataset(given.root, given.task, episodes, seed=given.seed, cameras=given.camera)


if __name__ == "__main__":
    main()

"""What an evaluation saves as a LeRobotDataset: staged by the workers, put together at the end.

The journal says which episodes there are. Episodes are staged in the run's folder, so a run that
was cut short goes on, and each time it ends the whole dataset is put together anew, beside the
place where it belongs, and then moved there. So it is never half of one, and it depends on nothing
but the episodes that are finished.
"""

from __future__ import annotations

import json
import logging
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium

from polyarm import __version__, registry
from polyarm.contracts import EnvSpec, EpisodeKey, EpisodeResult
from polyarm.errors import InvalidCall, RunConflict
from polyarm.policies.lerobot_observations import METAWORLD_STATE, image_keys
from polyarm.recording.dataset import (
    DatasetOptions,
    StagedFiles,
    require_dataset_extra,
    staged_files,
)
from polyarm.recording.dataset_writer import ABOUT, DatasetWriter, Episode
from polyarm.recording.trajectory import load_trajectory, save_trajectory
from polyarm.report.encoding import write_atomically
from polyarm.rollout.episode import RunningEpisode
from polyarm.rollout.journal import STAGED_EPISODES, Finished, storage_errors
from polyarm.rollout.options import EvalOptions
from polyarm.rollout.plan import Group

_log = logging.getLogger(__name__)

_RECORDER = "polyarm.recording.dataset:dataset_recorder"
_SEVERAL = "polyarm.recording.several:several_recorders"
_ID = "dataset_id"
"""A file in the run's folder: outlives staged episodes, and a run that starts over."""


class DatasetExport:
    """The dataset of a run.

    Args:
        options: Of the evaluation; ``save_dataset`` says where it goes.
        folder: The run's.
        groups: The tasks.

    Raises:
        InvalidCall: The tasks do not fit into one dataset, or the place is taken.
        MissingExtra: What datasets need is not installed.
    """

    def __init__(self, options: EvalOptions, folder: Path, groups: Sequence[Group]) -> None:
        assert options.save_dataset is not None
        require_dataset_extra()
        if len(groups) > 1:
            first, other = (group.specs[0].name for group in groups[:2])
            raise InvalidCall(
                "a dataset takes tasks whose observations and actions agree; those of"
                f" {first} and {other} may not. Save them one by one."
            )
        self._folder = folder.resolve()
        self._target = Path(options.save_dataset).resolve()
        self._only_successes = options.dataset_episodes == "successes"
        self._staging = self._folder / STAGED_EPISODES
        self._robot_type = groups[0].specs[0].suite
        self._staged = _staging_options(groups[0].specs[0], self._staging, options.fps)
        self._id = _read_id(self._folder) or uuid.uuid4().hex
        self._refuse_foreign_target()

    def make_arguments(self, beside: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments of `make_vec`.

        Args:
            beside: Those of another observer, or none.
        """
        own = asdict(self._staged)
        if not beside:
            return {"observer": _RECORDER, "observer_options": own}
        both = {beside["observer"]: dict(beside["observer_options"]), _RECORDER: own}
        return {"observer": _SEVERAL, "observer_options": {"recorders": both}}

    def begin(self, finished: Finished, planned: Sequence[EpisodeKey]) -> None:
        """Get ready to stage episodes.

        Args:
            finished: What need not be played again.
            planned: The episodes of each policy.

        Raises:
            RunConflict: One that the dataset should hold was not staged.
            InvalidCall: The place is taken, or the dataset that is there would lose episodes.
            StorageError: Nothing can be written there.
        """
        self._refuse_foreign_target()
        self._refuse_to_lose(finished, planned)
        for result in self._chosen(finished, planned):
            if not self._files(result.policy, result.key).complete():
                raise RunConflict(
                    f"{self._folder} holds finished episodes that were not saved for a dataset, or"
                    f" no longer are, such as {result.key}. Choose another folder with --out, or"
                    " start over with --fresh."
                )
        with storage_errors(self._folder):
            self._staging.mkdir(parents=True, exist_ok=True)
            self._agree_on_id()
        with storage_errors(self._target):
            self._new_part().rmdir()  # better to fail now than after hours

    def stage(self, label: str, episode: RunningEpisode) -> None:
        """Add to an episode, staged by its worker, what is known here.

        Args:
            label: The policy's.
            episode: One that came to its end.
        """
        files = self._files(label, episode.key)
        known = {
            "actions": episode.actions(),
            "rewards": episode.rewards(),
            "task": episode.instruction or episode.key.name,
        }
        with storage_errors(self._folder):
            save_trajectory(files.executed, known)

    def write(
        self, finished: Finished, planned: Sequence[EpisodeKey], alive: Callable[[], None]
    ) -> None:
        """Put the dataset together.

        Args:
            finished: What there is, of all policies of the run.
            planned: The episodes of each policy, in the order of the dataset.
            alive: Called after every episode.

        Raises:
            InvalidCall: Somebody else has taken the place meanwhile.
            StorageError: It could not be written; an earlier one is still there.
        """
        with storage_errors(self._folder):
            self._agree_on_id()  # of ranks, another one than this may have begun
        self._refuse_foreign_target()
        chosen = self._chosen(finished, planned)
        if not chosen:
            _log.warning("no episode has ended that could be saved: %s is not made", self._target)
            return
        try:
            with storage_errors(self._target):
                part, fps = self._new_part(), float(self._staged.rate)
                with closing(DatasetWriter(part, fps, self._robot_type)) as writer:
                    for result in chosen:
                        writer.add(self._episode(result))
                        alive()
                    writer.finish(self._about(chosen))
                self._refuse_foreign_target()
                self._move(part)
        finally:
            shutil.rmtree(self._beside("part"), ignore_errors=True)

    def _agree_on_id(self) -> None:
        """Take the run's name from its folder, or leave ours there."""
        if known := _read_id(self._folder):
            self._id = known
        else:
            write_atomically(self._folder / _ID, self._id)

    def _chosen(self, finished: Finished, planned: Sequence[EpisodeKey]) -> list[EpisodeResult]:
        """What the dataset holds, policy after policy, in an order that no run can change."""
        wanted = ("success",) if self._only_successes else ("success", "failure")
        labels = sorted({label for label, _ in finished})
        results = [finished.get((label, key)) for label in labels for key in planned]
        return [result for result in results if result and result.outcome in wanted]

    def _episode(self, result: EpisodeResult) -> Episode:
        files = self._files(result.policy, result.key)
        observed, executed = load_trajectory(files.observed), load_trajectory(files.executed)
        return Episode(
            name=str(result.key),
            task=str(executed["task"]),
            observed=observed["columns"],
            actions=executed["actions"],
            rewards=executed["rewards"],
            videos=files.videos,
            histograms=observed["histograms"],
            shapes={name: tuple(shape) for name, shape in observed["shapes"].items()},
        )

    def _about(self, chosen: Sequence[EpisodeResult]) -> dict[str, Any]:
        episodes = [
            {**asdict(result.key), "policy": result.policy, "outcome": result.outcome}
            for result in chosen
        ]
        return {"polyarm": __version__, "run": self._id, "episodes": episodes}

    def _move(self, part: Path) -> None:
        """Put a finished dataset in the place of an earlier one."""
        old = self._beside("old")
        shutil.rmtree(old, ignore_errors=True)
        if self._target.exists():
            self._target.rename(old)
        part.rename(self._target)
        shutil.rmtree(old, ignore_errors=True)

    def _new_part(self) -> Path:
        """An empty folder, from which the dataset can be moved to its place."""
        part = self._beside("part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        return part

    def _beside(self, ending: str) -> Path:
        return self._target.with_name(f".{self._target.name}.{self._id}.{ending}")

    def _files(self, label: str, key: EpisodeKey) -> StagedFiles:
        return staged_files(self._staged, label, key)

    def _refuse_foreign_target(self) -> None:
        target = self._target
        reserved = (self._staging, self._folder / "videos", self._folder / "trajectories")
        if self._folder.is_relative_to(target) or any(map(target.is_relative_to, reserved)):
            raise InvalidCall(f"{target} is a folder of the run itself; save the dataset elsewhere")
        if target.is_mount():
            raise InvalidCall(
                f"{target} is a mount point, which a dataset cannot be moved to; choose a folder"
                " in it"
            )
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            return
        if (made_by := self._there().get("run")) != self._id:
            what = (
                "another run's dataset" if made_by else "something that is no dataset of this run"
            )
            raise InvalidCall(
                f"{target} holds {what}, which would be lost; choose a new folder or remove it"
            )

    def _refuse_to_lose(self, finished: Finished, planned: Sequence[EpisodeKey]) -> None:
        """A command for other tasks, or fewer episodes, would leave only these in the dataset."""
        there = {
            EpisodeKey(each["suite"], each["task"], each["index"], each["repeat"])
            for each in self._there().get("episodes", ())
        }
        known = {key for _, key in finished}
        if lost := sorted(map(str, (there & known).difference(planned))):
            raise InvalidCall(
                f"{self._target} holds episodes that this command does not name, such as {lost[0]},"
                " and would lose them. Name all tasks and episodes, or save this dataset elsewhere."
            )

    def _there(self) -> dict[str, Any]:
        """What the dataset that is there says about itself; empty if there is none of ours."""
        try:
            about = json.loads((self._target / ABOUT).read_text())
        except (OSError, ValueError):
            return {}
        return about if isinstance(about, dict) else {}


def _read_id(folder: Path) -> str:
    try:
        return (folder / _ID).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _staging_options(spec: EnvSpec, staging: Path, fps: float) -> DatasetOptions:
    """How LeRobot's own env of a suite would name, cut and turn its observations.

    Args:
        spec: One of the envs.
        staging: Where episodes are staged.
        fps: Steps per second where the suite does not say.
    """
    description = registry.load(spec.suite).describe(spec)
    metadata = description.metadata if description is not None else {}
    if spec.cameras and description is not None:
        _refuse_odd_frames(description.observation_space)
    features = image_keys(spec.cameras, spec.suite)
    try:
        return DatasetOptions(
            folder=str(staging),
            fps=float(metadata.get("render_fps", 0) or fps),
            cameras=dict(zip(spec.cameras, features, strict=True)),
            state_size=METAWORLD_STATE if spec.suite == "metaworld" else 0,
            mirrored=spec.suite == "libero",
        )
    except ValueError as error:
        raise InvalidCall(str(error)) from error


def _refuse_odd_frames(space: gymnasium.Space[Any]) -> None:
    """Colours are stored for two by two pixels, and LeRobot expects frames of the named size."""
    assert isinstance(space, gymnasium.spaces.Dict)
    for key, frame in space.items():
        height, width = (*(frame.shape or ()), 0, 0)[:2]
        if key.startswith("pixels/") and (height % 2 or width % 2):
            raise InvalidCall(
                f"videos of a dataset have an even height and width, but {key} has {height} x"
                f" {width} pixels; choose another --image-size"
            )

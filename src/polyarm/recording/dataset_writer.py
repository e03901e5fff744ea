"""Puts staged episodes together as a LeRobotDataset, version 3.0 of its layout.

```
meta/info.json                         features, counts, where files are
meta/stats.json                        statistics of every feature
meta/tasks.parquet                     what the policy is told, by task_index
meta/episodes/chunk-000/file-000.parquet     an episode per row: where it is, its statistics
meta/polyarm.json                      ours: which run made it, which episode is which
data/chunk-000/file-000.parquet        a step per row, an episode per row group
videos/<feature>/chunk-000/file-000.mp4      a file per camera and episode
```

What is written depends on the episodes and their order alone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polyarm.errors import InvalidObservation
from polyarm.recording.dataset_columns import (
    ACTION,
    DONE,
    EPISODE_INDEX,
    FRAME_INDEX,
    INDEX,
    REWARD,
    TASK_INDEX,
    TIMESTAMP,
    Array,
    as_column,
)
from polyarm.recording.dataset_stats import Histogram, Stats, column_stats

if TYPE_CHECKING:
    import pyarrow as pa

LAYOUT = "v3.0"
ABOUT = "meta/polyarm.json"

_FILES_PER_CHUNK = 1000
_DATA_MB, _VIDEO_MB = 100, 200
_PLACE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
_DATA_PATH = f"data/{_PLACE}.parquet"
_VIDEO_PATH = f"videos/{{video_key}}/{_PLACE}.mp4"
_EPISODES_PATH = f"meta/episodes/{_PLACE}.parquet"


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode as it goes into a dataset.

    Attributes:
        name: For messages.
        task: What the policy was told.
        observed: Columns by feature, ``(T,)`` or ``(T, n)``, success included.
        actions: ``(T, …)``.
        rewards: ``(T,)``.
        videos: Files of T frames by feature.
        histograms: Of these frames, int64 ``(3, 256)``.
        shapes: Of these frames, ``(height, width, 3)``.
    """

    name: str
    task: str
    observed: Mapping[str, Array]
    actions: Array
    rewards: Array
    videos: Mapping[str, Path]
    histograms: Mapping[str, Array]
    shapes: Mapping[str, tuple[int, ...]]


class DatasetWriter:
    """Writes a dataset episode by episode; complete when `finish` has returned.

    Args:
        folder: A new folder.
        fps: Steps per second.
        robot_type: What acts, in a word.
    """

    def __init__(self, folder: Path, fps: float, robot_type: str) -> None:
        self._folder = folder
        self._fps = int(fps) if float(fps).is_integer() else fps
        self._robot_type = robot_type
        self._data = _DataFiles(folder)
        self._features: dict[str, dict[str, Any]] = {}
        self._tasks: dict[str, int] = {}
        self._episodes: list[dict[str, Any]] = []
        self._columns: dict[str, list[Array]] = {}
        self._histograms: dict[str, Histogram] = {}
        self._num_frames = 0

    def add(self, episode: Episode) -> None:
        """Write an episode's steps and put its videos in place.

        Raises:
            InvalidObservation: Its features differ from those of the episodes before it, or its
                parts have different lengths.
            OSError: The disk is full or out of order.
        """
        columns = self._completed(episode)
        self._agree(episode, columns)
        number, length = len(self._episodes), len(episode.rewards)
        chunk, file = self._data.write(columns)
        row: dict[str, Any] = {
            EPISODE_INDEX: number,
            "tasks": [episode.task],
            "length": length,
            "data/chunk_index": chunk,
            "data/file_index": file,
            "dataset_from_index": self._num_frames,
            "dataset_to_index": self._num_frames + length,
        }
        stats = {name: column_stats(values) for name, values in columns.items()}
        for feature, source in episode.videos.items():
            chunk, file = divmod(number, _FILES_PER_CHUNK)
            place = {"chunk_index": chunk, "file_index": file}
            _link(source, self._folder / _VIDEO_PATH.format(video_key=feature, **place))
            span = {"from_timestamp": 0.0, "to_timestamp": length / self._fps}
            row |= {f"videos/{feature}/{name}": value for name, value in {**place, **span}.items()}
            counted = Histogram(np.asarray(episode.histograms[feature]))
            stats[feature] = counted.stats(length)
            self._histograms.setdefault(feature, Histogram()).counts += counted.counts
        row |= {f"stats/{name}/{what}": v for name, of in stats.items() for what, v in of.items()}
        row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        self._episodes.append(row)
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values)
        self._num_frames += length

    def finish(self, about: Mapping[str, Any]) -> None:
        """Write what is known when all episodes are there.

        Args:
            about: Goes into `ABOUT`.
        """
        import pyarrow as pa
        from pyarrow import parquet

        self._data.close()
        path = self._folder / _EPISODES_PATH.format(chunk_index=0, file_index=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.Table.from_pylist(self._episodes), path)
        parquet.write_table(_tasks_table(self._tasks), self._folder / "meta/tasks.parquet")
        self._write_json("meta/stats.json", self._stats())
        self._write_json(ABOUT, about)
        self._write_json("meta/info.json", self._info())

    def close(self) -> None:
        """Close files; an unfinished dataset stays unfinished."""
        self._data.close()

    def _completed(self, episode: Episode) -> dict[str, Array]:
        """All columns of an episode, in LeRobot's order."""
        length = len(episode.rewards)
        steps = np.arange(length, dtype=np.int64)
        task = self._tasks.setdefault(episode.task, len(self._tasks))
        columns = {
            **episode.observed,
            ACTION: as_column(episode.actions).reshape(length, -1),
            REWARD: as_column(episode.rewards),
            DONE: steps == length - 1,
            TIMESTAMP: (steps / self._fps).astype(np.float32),
            FRAME_INDEX: steps,
            EPISODE_INDEX: np.full(length, len(self._episodes), np.int64),
            INDEX: self._num_frames + steps,
            TASK_INDEX: np.full(length, task, np.int64),
        }
        lengths = {name: len(values) for name, values in columns.items()}
        if set(lengths.values()) != {length}:
            raise InvalidObservation(
                f"{episode.name} was executed for {length} steps, but what was observed of it has"
                f" {lengths}; play it again in a new folder"
            )
        # LeRobot keeps a vector of one number as a number.
        return {
            name: values.reshape(length) if values.shape[1:] == (1,) else values
            for name, values in columns.items()
        }

    def _agree(self, episode: Episode, columns: Mapping[str, Array]) -> None:
        features = {
            feature: self._video_feature(episode.shapes[feature]) for feature in episode.videos
        }
        for name, values in columns.items():
            shape = list(values.shape[1:]) or [1]
            features[name] = {"dtype": str(values.dtype), "shape": shape, "names": None}
        if self._episodes and features != self._features:
            differing = [
                f"{name}: {features.get(name)} there, {self._features.get(name)} before"
                for name in {**features, **self._features}
                if features.get(name) != self._features.get(name)
            ]
            raise InvalidObservation(
                f"{episode.name} does not fit into the dataset. What differs:\n  "
                + "\n  ".join(differing)
            )
        self._features = features

    def _video_feature(self, shape: tuple[int, ...]) -> dict[str, Any]:
        height, width, channels = (int(size) for size in shape)
        return {
            "dtype": "video",
            "shape": [height, width, channels],
            "names": ["height", "width", "channels"],
            "info": {
                "video.height": height,
                "video.width": width,
                "video.codec": "h264",
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "video.fps": self._fps,
                "video.channels": channels,
                "has_audio": False,
            },
        }

    def _stats(self) -> dict[str, Stats]:
        stats = {
            name: column_stats(np.concatenate(values)) for name, values in self._columns.items()
        }
        filmed = {name: each.stats(self._num_frames) for name, each in self._histograms.items()}
        return {**filmed, **stats}

    def _info(self) -> dict[str, Any]:
        return {
            "codebase_version": LAYOUT,
            "robot_type": self._robot_type,
            "total_episodes": len(self._episodes),
            "total_frames": self._num_frames,
            "total_tasks": len(self._tasks),
            "chunks_size": _FILES_PER_CHUNK,
            "data_files_size_in_mb": _DATA_MB,
            "video_files_size_in_mb": _VIDEO_MB,
            "fps": self._fps,
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": _DATA_PATH,
            "video_path": _VIDEO_PATH if self._histograms else None,
            "features": self._features,
        }

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(content, indent=4, ensure_ascii=False)
        (self._folder / name).write_text(f"{text}\n", encoding="utf-8")


class _DataFiles:
    """Parquet files of steps, each closed when it is large enough."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = -1
        self._file: Any = None
        self._writer: Any = None

    def write(self, columns: Mapping[str, Array]) -> tuple[int, int]:
        """Write an episode as a row group; returns chunk and number of its file."""
        from pyarrow import parquet

        table = _table(columns)
        if self._writer is None:
            self._number += 1
            path = self._folder / _DATA_PATH.format(**self._place())
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
            self._writer = parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table, row_group_size=len(table))
        place = self._place()
        if self._file.tell() >= _DATA_MB * 2**20:
            self.close()
        return place["chunk_index"], place["file_index"]

    def close(self) -> None:
        """Finish the current file, if there is one."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        try:
            writer.close()
        finally:
            self._file.close()

    def _place(self) -> dict[str, int]:
        chunk, file = divmod(self._number, _FILES_PER_CHUNK)
        return {"chunk_index": chunk, "file_index": file}


def _table(columns: Mapping[str, Array]) -> pa.Table:
    import pyarrow as pa

    arrays = {}
    for name, values in columns.items():
        flat = pa.array(values.ravel())
        size = values.shape[1] if values.ndim > 1 else 0
        arrays[name] = pa.FixedSizeListArray.from_arrays(flat, size) if size else flat
    return pa.table(arrays)


def _tasks_table(tasks: Mapping[str, int]) -> pa.Table:
    """A table that pandas reads with the tasks' words as its index, as LeRobot expects."""
    import pyarrow as pa

    numbers = pa.array(list(tasks.values()), pa.int64())
    table = pa.table({TASK_INDEX: numbers, "task": pa.array(list(tasks), pa.string())})
    index = {"name": "task", "field_name": "task", "pandas_type": "unicode"}
    column = {"name": TASK_INDEX, "field_name": TASK_INDEX, "pandas_type": "int64"}
    described = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [
            {**column, "numpy_type": "int64", "metadata": None},
            {**index, "numpy_type": "object", "metadata": None},
        ],
        "pandas_version": "2.0.0",
    }
    return table.replace_schema_metadata({"pandas": json.dumps(described)})


def _link(source: Path, target: Path) -> None:
    """Put a file in a second place; on another disk as a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)

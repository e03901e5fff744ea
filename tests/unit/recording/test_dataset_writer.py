"""The layout on disk, held against LeRobot's description of version 3.0, entry by entry."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pytest
from pyarrow import parquet

from polyarm.errors import InvalidObservation
from polyarm.recording import dataset_writer
from polyarm.recording.dataset_stats import QUANTILES
from polyarm.recording.dataset_writer import DatasetWriter, Episode

FEATURE = "observation.images.front"
INFO = {
    "codebase_version": str, "robot_type": str, "total_episodes": int, "total_frames": int,
    "total_tasks": int, "chunks_size": int, "data_files_size_in_mb": int,
    "video_files_size_in_mb": int, "fps": int, "splits": dict, "data_path": str,
    "video_path": str, "features": dict,
}  # fmt: skip
DEFAULTS = {
    "timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64",
    "task_index": "int64",
}  # fmt: skip
EPISODE = {
    "episode_index", "tasks", "length", "data/chunk_index", "data/file_index",
    "dataset_from_index", "dataset_to_index", "meta/episodes/chunk_index",
    "meta/episodes/file_index",
}  # fmt: skip
VIDEO = {"chunk_index", "file_index", "from_timestamp", "to_timestamp"}
STATS = {"min", "max", "mean", "std", "count", *QUANTILES}


def episode(folder: Path, length: int, task: str = "reach it", *, seed=0, **changed) -> Episode:
    noise = np.random.default_rng(seed)
    video = folder / f"{length}-{seed}.mp4"
    video.write_bytes(noise.bytes(10))
    counts = noise.integers(1, 100, (3, 256))
    given = {
        "name": f"s/t#{seed}",
        "task": task,
        "observed": {
            "observation.state": noise.normal(size=(length, 4)).astype(np.float32),
            "next.success": np.arange(length) == length - 1,
        },
        "actions": noise.normal(size=(length, 2)).astype(np.float32),
        "rewards": noise.normal(size=length),
        "videos": {FEATURE: video},
        "histograms": {FEATURE: counts},
        "shapes": {FEATURE: (32, 48, 3)},
    }
    return Episode(**{**given, **changed})


def write(folder: Path, *episodes: Episode, fps: float = 20.0) -> Path:
    folder.mkdir()
    with closing(DatasetWriter(folder, fps, "sawyer")) as writer:
        for each in episodes:
            writer.add(each)
        writer.finish({"run": "x"})
    return folder


def check_layout(folder: Path) -> None:
    """Fails unless a folder is a dataset as LeRobot describes it."""
    info = json.loads((folder / "meta/info.json").read_text())
    assert {name: type(value) for name, value in info.items()} == INFO
    assert info["codebase_version"] == "v3.0"
    assert info["splits"] == {"train": f"0:{info['total_episodes']}"}
    features = info["features"]
    assert all("/" not in name for name in features)
    assert all({"dtype", "shape", "names"} <= set(feature) for feature in features.values())
    for name, dtype in DEFAULTS.items():
        assert features[name] == {"dtype": dtype, "shape": [1], "names": None}
    videos = [name for name, feature in features.items() if feature["dtype"] == "video"]
    for name in videos:
        assert len(features[name]["shape"]) == 3
        assert features[name]["names"] == ["height", "width", "channels"]

    stats = json.loads((folder / "meta/stats.json").read_text())
    assert set(stats) == set(features)
    for name, of in stats.items():
        assert set(of) == STATS
        shape = (3, 1, 1) if name in videos else tuple(features[name]["shape"])
        assert {np.shape(values) for what, values in of.items() if what != "count"} == {shape}
        assert of["count"] == [info["total_frames"]]

    tasks = pandas.read_parquet(folder / "meta/tasks.parquet")
    assert list(tasks.columns) == ["task_index"]
    assert tasks.task_index.tolist() == list(range(info["total_tasks"]))
    assert all(isinstance(task, str) for task in tasks.index)

    rows = parquet.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [row["episode_index"] for row in rows] == list(range(info["total_episodes"]))
    start = 0
    for row in rows:
        told = {f"stats/{name}/{what}" for name in features for what in STATS}
        filmed = {f"videos/{name}/{what}" for name in videos for what in VIDEO}
        assert set(row) == EPISODE | told | filmed
        assert row["dataset_from_index"] == start
        start = row["dataset_to_index"]
        place = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
        table = parquet.read_table(folder / info["data_path"].format(**place))
        check_rows(table, row, {name: features[name] for name in features if name not in videos})
        assert set(tasks.index[table["task_index"].to_numpy()]) >= set(row["tasks"])
        for name in videos:
            place = {what: row[f"videos/{name}/{what}"] for what in ("chunk_index", "file_index")}
            assert (folder / info["video_path"].format(video_key=name, **place)).is_file()
            seconds = row[f"videos/{name}/to_timestamp"] - row[f"videos/{name}/from_timestamp"]
            assert seconds == pytest.approx(row["length"] / info["fps"])
    assert start == info["total_frames"]


def check_rows(table: pa.Table, row: dict, features: dict) -> None:
    for name, feature in features.items():
        kind = pa.from_numpy_dtype(np.dtype(feature["dtype"]))
        size = feature["shape"][0]
        assert table.schema.field(name).type == (pa.list_(kind, size) if size > 1 else kind)
    assert set(table.column_names) == set(features)
    own = table.filter(pa.compute.equal(table["episode_index"], row["episode_index"]))
    assert own["index"].to_pylist() == list(
        range(row["dataset_from_index"], row["dataset_to_index"])
    )
    assert own["frame_index"].to_pylist() == list(range(row["length"]))
    assert own["next.done"].to_pylist() == [False] * (row["length"] - 1) + [True]


def test_what_is_written_is_the_documented_layout(tmp_path):
    episodes = [
        episode(tmp_path, 5),
        episode(tmp_path, 3, "push it", seed=1),
        episode(tmp_path, 1, seed=2),
    ]
    folder = write(tmp_path / "data", *episodes)
    check_layout(folder)
    table = parquet.read_table(folder / "data/chunk-000/file-000.parquet")
    assert parquet.ParquetFile(folder / "data/chunk-000/file-000.parquet").num_row_groups == 3
    assert table["task_index"].to_pylist() == [0] * 5 + [1] * 3 + [0]
    actions = np.concatenate([each.actions for each in episodes])
    np.testing.assert_array_equal(np.array(table["action"].to_pylist(), np.float32), actions)
    stats = json.loads((folder / "meta/stats.json").read_text())
    np.testing.assert_allclose(stats["action"]["std"], actions.astype(np.float64).std(axis=0))
    summed = sum(each.histograms[FEATURE] for each in episodes)
    expected = (summed @ np.arange(256) / summed.sum(axis=1) / 255).reshape(3, 1, 1)
    np.testing.assert_allclose(stats[FEATURE]["mean"], expected)
    first = folder / "videos" / FEATURE / "chunk-000/file-000.mp4"
    assert first.read_bytes() == episodes[0].videos[FEATURE].read_bytes()


def test_files_and_chunks_roll_over_and_stay_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset_writer, "_DATA_MB", 0)
    monkeypatch.setattr(dataset_writer, "_FILES_PER_CHUNK", 2)
    folder = write(tmp_path / "data", *(episode(tmp_path, 2 + n, seed=n) for n in range(5)))
    check_layout(folder)
    names = [str(path.relative_to(folder / "data")) for path in folder.glob("data/*/*")]
    assert sorted(names) == [
        f"chunk-00{chunk}/file-00{file}.parquet"
        for chunk, file in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    ]
    assert (folder / "videos" / FEATURE / "chunk-002/file-000.mp4").exists()


def test_a_dataset_without_cameras_has_no_videos(tmp_path):
    bare = {"videos": {}, "histograms": {}, "shapes": {}}
    folder = write(tmp_path / "data", episode(tmp_path, 4, **bare))
    info = json.loads((folder / "meta/info.json").read_text())
    assert info["video_path"] is None
    assert not (folder / "videos").exists()
    assert "observation.state" in info["features"]


def test_single_numbers_are_scalars_and_integers_stay_integers(tmp_path):
    one = episode(tmp_path, 4, actions=np.array([0, 1, 1, 0]), seed=1)
    folder = write(tmp_path / "data", one)
    check_layout(folder)
    action = parquet.read_table(folder / "data/chunk-000/file-000.parquet")["action"]
    assert action.type == pa.int64()
    assert action.to_pylist() == [0, 1, 1, 0]


def test_a_rate_may_be_no_whole_number(tmp_path):
    folder = write(tmp_path / "data", episode(tmp_path, 4), fps=12.5)
    assert json.loads((folder / "meta/info.json").read_text())["fps"] == 12.5
    table = parquet.read_table(folder / "data/chunk-000/file-000.parquet")
    expected = (np.arange(4) / 12.5).astype(np.float32)
    np.testing.assert_array_equal(table["timestamp"].to_numpy(), expected)


def test_an_episode_of_other_features_is_refused(tmp_path):
    other = episode(tmp_path, 3, actions=np.zeros((3, 7), np.float32), seed=1)
    with pytest.raises(InvalidObservation, match=r"s/t#1 does not fit.*\n  action: .*\[7\].*\[2\]"):
        write(tmp_path / "data", episode(tmp_path, 3), other)


def test_parts_of_different_length_are_refused(tmp_path):
    with pytest.raises(InvalidObservation, match="executed for 3 steps, but what was observed"):
        write(tmp_path / "data", episode(tmp_path, 4, actions=np.zeros((3, 2)), rewards=np.ones(3)))


def test_without_hard_links_videos_are_copied(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(dataset_writer.os, "link", refuse)
    check_layout(write(tmp_path / "data", episode(tmp_path, 3)))

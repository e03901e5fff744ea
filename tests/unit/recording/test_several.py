from __future__ import annotations

import numpy as np
import pytest

from polyarm.contracts import EpisodeKey, ObservedEpisode
from polyarm.recording.several import SeveralRecorders, several_recorders

EPISODE = ObservedEpisode(EpisodeKey("s", "t", 3), "", 10)


def test_all_are_told_and_all_files_are_listed(tmp_path):
    video = {"folder": str(tmp_path / "videos"), "cameras": ("front",), "stride": 2}
    staged = {"folder": str(tmp_path / "staged"), "fps": 20.0}
    both = several_recorders(
        {
            "polyarm.recording.video:video_recorder": video,
            "polyarm.recording.dataset:dataset_recorder": staged,
        }
    )
    both.begin(EPISODE)
    assert [both.wants_frames(step) for step in range(3)] == [True, False, True]
    for step in range(3):
        frames = {"pixels/front": np.zeros((16, 16, 3), np.uint8)} if step != 1 else {}
        both.observe(step, {"state": np.zeros(2), **frames}, 0.0, success=False)
    assert both.end(success=False) == ["videos/s/t/3.mp4"]
    assert (tmp_path / "staged/s/t/3.observed.npz").exists()
    both.close()


def test_all_are_closed_also_when_one_fails():
    closed = []

    class Stubborn:
        def close(self):
            closed.append(self)
            raise RuntimeError("not now")

    with pytest.raises(RuntimeError, match="not now"):
        SeveralRecorders([Stubborn(), Stubborn()]).close()
    assert len(closed) == 2

"""PyAV and Pillow are only needed where videos are made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from polyarm.errors import MissingExtra
from polyarm.recording.video import require_video_extra, video_recorder


def test_importing_the_room_imports_neither():
    check = "import sys, polyarm.recording.video; sys.exit(bool({'av', 'PIL'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize("missing", ["av", "PIL"])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match=rf"{missing}.*pip install 'polyarm\[video\]'"):
        require_video_extra()
    with pytest.raises(MissingExtra):
        video_recorder(folder=str(tmp_path), cameras=("corner",))
    video_recorder(folder=str(tmp_path), cameras=("corner",), record="none").close()

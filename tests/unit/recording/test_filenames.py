"""File names for any task: readable where possible, and never shared."""

from __future__ import annotations

import string
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from polyarm.contracts import EpisodeKey
from polyarm.recording.filenames import episode_file, safe_name

CONFUSABLE = [
    "reach-v3", "reach v3", "reach/v3", "reach_v3", "reach\\v3", "reach:v3", "reach\nv3",
    "réach-v3", "re\u0301ach-v3", "réach-v3 ", " réach-v3", ".reach-v3", "..", ".", "", "/", "//",
    "../..", "~", "伸手", "伸", "a" * 80, "a" * 81, "a" * 300, "a" * 301, "\0", "\udcff", "-rf",
]  # fmt: skip


def test_plain_names_stay_as_they_are():
    for name in ("reach-v3", "LunarLander-v3", "libero_10.task=3", "a"):
        assert safe_name(name) == name


def test_confusable_names_stay_apart_in_one_folder(tmp_path: Path):
    names = {safe_name(name) for name in CONFUSABLE}
    assert len(names) == len(CONFUSABLE)
    for name in names:
        (tmp_path / name).touch(exist_ok=False)
    assert {path.name for path in tmp_path.iterdir()} == names


@given(st.text(st.characters()))
def test_every_name_is_one_plain_path_component(name: str):
    safe = safe_name(name)
    assert 0 < len(safe) <= 80
    assert set(safe) <= {*string.ascii_letters, *string.digits, *"_.+=-~"}
    assert not safe.startswith((".", "-"))
    assert safe_name(safe) == safe or "~" in safe


def test_the_name_of_one_task_made_safe_is_not_that_of_another():
    odd = "reach/v3"
    assert safe_name(safe_name(odd)) != safe_name(odd)


def test_indices_and_repeats_make_different_files():
    keys = [
        EpisodeKey("s", "t", index, repeat) for index in (1, 11, 2**33) for repeat in (0, 1, 11)
    ]
    assert len({episode_file(key, ".mp4") for key in keys}) == len(keys)
    assert str(episode_file(EpisodeKey("s", "t", 3, 2), "_top.mp4")) == "s/t/3.2_top.mp4"

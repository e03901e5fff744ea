"""A server is sent what openpi's LIBERO example sends; other mappings are small files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from openpi_client import image_tools

from polyarm.errors import PolicyError, UnknownName, WireError
from polyarm.policies.mapping import load_mapping, mapping_from, resize_with_padding


def frames(count, height=256, width=256):
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8)


@pytest.fixture
def libero_batch(make_batch):
    obs = {
        "pixels/agentview": frames(2),
        "pixels/robot0_eye_in_hand": frames(2)[::-1],
        "state": np.arange(16, dtype=np.float32).reshape(2, 8),
    }
    return make_batch([0, 1], obs)


@pytest.mark.parametrize(("name", "step"), [("libero", 1), ("libero-raw", -1)])
def test_liberos_request_is_that_of_openpis_example(libero_batch, name, step):
    request = load_mapping(name).request(libero_batch, 1)
    assert list(request) == [
        "observation/image",
        "observation/wrist_image",
        "observation/state",
        "prompt",
    ]
    for sent, camera in (("image", "agentview"), ("wrist_image", "robot0_eye_in_hand")):
        frame = libero_batch.obs[f"pixels/{camera}"][1]
        theirs = np.ascontiguousarray(frame[::step, ::step])
        theirs = image_tools.convert_to_uint8(image_tools.resize_with_pad(theirs, 224, 224))
        np.testing.assert_array_equal(request[f"observation/{sent}"], theirs)
    np.testing.assert_array_equal(request["observation/state"], np.arange(8, 16))
    assert request["prompt"] == "do count"
    assert load_mapping(name).execute == 5


@pytest.mark.parametrize("size", [(256, 256), (480, 640), (100, 37), (37, 100), (224, 224), (1, 9)])
def test_frames_are_resized_to_the_bit_as_openpis_client_does(size):
    frame = frames(1, *size)[0]
    theirs = image_tools.resize_with_pad(frame, 224, 224)
    np.testing.assert_array_equal(resize_with_padding(frame, 224), theirs)


def test_a_camera_that_was_not_asked_for_is_named_with_the_option(make_batch):
    with pytest.raises(PolicyError, match=r"'pixels/agentview'.* has state; .*--cameras"):
        load_mapping("libero").request(make_batch([0]), 0)


def test_plain_sends_every_observation_under_its_name_and_reads_it_back(make_batch):
    plain = load_mapping("plain")
    nested = {"state": np.eye(2), "robot": {"joints": np.ones((2, 7))}}
    request = plain.request(make_batch([0, 1], nested), 1)
    obs, instruction = plain.observation({**request, "reset": True, "polyarm": {}})
    np.testing.assert_array_equal(obs["state"], [0, 1])
    np.testing.assert_array_equal(obs["robot"]["joints"], np.ones(7))
    assert instruction == "do count"
    bare, _ = plain.observation(plain.request(make_batch([0, 1], np.eye(2)), 1))
    np.testing.assert_array_equal(bare, [0, 1])


def test_a_mapping_from_a_file_is_applied_and_read_back(tmp_path, make_batch):
    table = {
        "cam": {"from": "pixels/front", "resize": 32, "rotate": True},
        "proprio": "state",
        "task": "instruction",
        "execute": 3,
    }
    (tmp_path / "mine.json").write_text(json.dumps(table))
    (tmp_path / "mine.yaml").write_text("proprio: state\ntask: instruction\n")
    mapping = load_mapping(str(tmp_path / "mine.json"))
    batch = make_batch([0], {"pixels/front": frames(1, 64, 64), "state": np.ones((1, 4))})
    request = mapping.request(batch, 0)
    assert request["cam"].shape == (32, 32, 3)
    obs, instruction = mapping.observation(request)
    assert (set(obs), instruction) == ({"pixels/front", "state"}, "do count")
    assert mapping.execute == 3
    assert mapping_from(mapping.table, "here") == mapping
    assert mapping.needs_frames
    assert not load_mapping(str(tmp_path / "mine.yaml")).needs_frames
    with pytest.raises(WireError, match="lacks 'cam'; it has proprio"):
        mapping.observation({"proprio": 1})


def test_a_function_may_make_the_request(tmp_path, monkeypatch, make_batch):
    source = "def request(batch, row):\n    return {'x': batch.obs['state'][row]}\n"
    (tmp_path / "my_mapping.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    mapping = load_mapping("my_mapping:request")
    assert list(mapping.request(make_batch([0]), 0)) == ["x"]
    monkeypatch.delitem(__import__("sys").modules, "my_mapping")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([1], "not a table"),
        ({"a": 1}, "expected a key of the observation"),
        ({"a": {"form": "state"}}, "expected a key of the observation"),
        ({"a": {"from": "state", "resize": "x"}}, "number of pixels"),
        ({"execute": 0}, "whole number from 1"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, table, message):
    (tmp_path / "wrong.json").write_text(json.dumps(table))
    with pytest.raises(PolicyError, match=message):
        load_mapping(str(tmp_path / "wrong.json"))


def test_names_that_are_no_mapping_are_refused(tmp_path):
    with pytest.raises(UnknownName, match="did you mean 'libero'"):
        load_mapping("libro")
    for name in ("nowhere.json", "no_such_module_at_all:f", "math:pi", "math:nothing"):
        with pytest.raises(PolicyError, match=name.partition(":")[0]):
            load_mapping(name)
    (tmp_path / "torn.yaml").write_text("a: [1")
    with pytest.raises(PolicyError, match=r"torn\.yaml"):
        load_mapping(str(tmp_path / "torn.yaml"))

"""Statistics are found where openpi, OpenVLA and LeRobot leave them; what is not there is named."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from polyarm.errors import PolicyError, UnknownName
from polyarm.policies import load_lerobot, load_openpi, load_openvla
from polyarm.policies.transforms import (
    Chain,
    LerobotMeanStd,
    LerobotRange,
    LiberoGripper,
    OpenpiQuantiles,
    OpenpiZScore,
    OpenvlaBounds,
)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def openpi_stats(offset=0.0):
    group = {"mean": [offset, 1], "std": [1, 2], "q01": [offset - 1, 0], "q99": [1, 3]}
    return {"norm_stats": {"state": group, "actions": {**group, "mean": [9, 9]}}}


def test_openpi_takes_the_root_first_and_then_the_asset(tmp_path):
    write(tmp_path / "assets/physical-intelligence/libero/norm_stats.json", openpi_stats())
    loaded = load_openpi(tmp_path, "physical-intelligence/libero", model="pi0")
    assert isinstance(loaded.state, OpenpiZScore)
    assert (loaded.state.mean[0], loaded.actions.mean[0]) == (0, 9)
    root = write(tmp_path / "norm_stats.json", openpi_stats(5))
    loaded = load_openpi(tmp_path, "physical-intelligence/libero", model="pi0")
    assert loaded.state.mean[0] == 5
    assert load_openpi(root, model="pi0").state.mean[0] == 5


@pytest.mark.parametrize("model", ["pi05", "pi0_fast"])
def test_other_models_than_pi0_use_quantiles(tmp_path, model):
    write(tmp_path / "norm_stats.json", openpi_stats())
    assert isinstance(load_openpi(tmp_path, model=model).actions, OpenpiQuantiles)


def test_a_missing_openpi_asset_is_named_with_the_closest_and_where_it_was_looked_for(tmp_path):
    for asset in ("trossen", "physical-intelligence/libero"):
        write(tmp_path / "assets" / asset / "norm_stats.json", openpi_stats())
    with pytest.raises(UnknownName) as caught:
        load_openpi(tmp_path, "libero", model="pi0")
    assert "Valid: physical-intelligence/libero, trossen" in str(caught.value)
    assert f"{tmp_path}/norm_stats.json and then" in str(caught.value)
    assert f"{tmp_path}/assets/libero/norm_stats.json" in str(caught.value)
    with pytest.raises(UnknownName, match="did you mean 'trossen'"):
        load_openpi(tmp_path, "trosen", model="pi0")
    with pytest.raises(UnknownName, match="Name one of these assets"):
        load_openpi(tmp_path, model="pi0")


@pytest.mark.parametrize(
    ("load", "looked"),
    [
        (lambda path: load_openpi(path, "a", model="pi0"), "assets/a/norm_stats.json"),
        (lambda path: load_openvla(path, "a"), "dataset_statistics.json and then .*config.json"),
        (lambda path: load_lerobot(path), "meta/stats.json"),
    ],
)
def test_a_missing_file_is_named_with_what_was_found_instead(tmp_path, load, looked):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(PolicyError, match=f"looked for .*{looked}; .* holds model.safetensors"):
        load(tmp_path)
    nowhere = f"{re.escape(str(tmp_path))} holds model.safetensors"
    with pytest.raises(PolicyError, match=nowhere):
        load(tmp_path / "no" / "such" / "folder")


def test_missing_statistics_are_named_with_those_that_are_there(tmp_path):
    stats = openpi_stats()
    stats["norm_stats"]["state"] |= {"q01": None, "q99": None}
    file = write(tmp_path / "norm_stats.json", stats)
    with pytest.raises(UnknownName, match=r"statistic of 'state' 'q01'.* Valid: mean, std.*Looked"):
        load_openpi(file, model="pi05")
    del stats["norm_stats"]["actions"]
    write(file, stats)
    with pytest.raises(UnknownName, match=r"statistics 'actions'.* Valid: state"):
        load_openpi(file, model="pi0")
    with pytest.raises(UnknownName, match=r"did you mean 'pi0'"):
        load_openpi(file, model="pi00")


def test_files_that_hold_something_else_are_refused(tmp_path):
    file = tmp_path / "norm_stats.json"
    file.write_text("{")
    with pytest.raises(PolicyError, match=r"norm_stats.json cannot be read as JSON"):
        load_openpi(tmp_path, model="pi0")
    write(file, [1])
    with pytest.raises(PolicyError, match=r"is list, expected an object"):
        load_openpi(tmp_path, model="pi0")
    file.write_text(json.dumps(openpi_stats()).replace("[9, 9]", "[9, NaN]"))
    with pytest.raises(PolicyError, match=r"mean of openpi z-score is nan in dimension 1"):
        load_openpi(tmp_path, model="pi0")


def openvla_stats(*keys):
    action = {"q01": [-1, 0], "q99": [1, 1], "min": [-2, 0], "max": [2, 1], "mask": [True, False]}
    proprio = {"q01": [0, 0, 0], "q99": [1, 1, 1], "min": [-1] * 3, "max": [2] * 3}
    return {key: {"action": action, "proprio": proprio, "num_transitions": 9} for key in keys}


def test_openvla_falls_back_to_the_dataset_without_idle_steps(tmp_path):
    write(tmp_path / "dataset_statistics.json", openvla_stats("libero_goal_no_noops", "bridge"))
    loaded = load_openvla(tmp_path, "libero_goal")
    gripper, bounds = loaded.actions.steps
    assert isinstance(gripper, LiberoGripper)
    assert (bounds.low.tolist(), bounds.mask.tolist()) == ([-1, 0], [True, False])
    assert loaded.state.mask.tolist() == [True] * 3
    found = loaded.actions.inverse(np.array([[0.5, 0.9]], np.float32))
    np.testing.assert_allclose(found, [[0.5, -1]], rtol=1e-6)
    assert isinstance(load_openvla(tmp_path, "bridge").actions, OpenvlaBounds)
    assert isinstance(load_openvla(tmp_path, "bridge", libero_gripper=True).actions, Chain)


def test_openvla_reads_the_models_config_where_there_is_no_file_of_its_own(tmp_path):
    write(tmp_path / "config.json", {"vocab_size": 1, "norm_stats": openvla_stats("bridge_orig")})
    loaded = load_openvla(tmp_path, variant="openvla", bounds="bounds")
    assert loaded.state is None
    assert (loaded.actions.oft, loaded.actions.low.tolist()) == (False, [-2, 0])
    write(tmp_path / "dataset_statistics.json", openvla_stats("mine"))
    assert load_openvla(tmp_path, "mine").state is not None
    write(tmp_path / "only" / "config.json", {"vocab_size": 1})
    with pytest.raises(UnknownName, match=r"key 'norm_stats'.*Looked in .*config.json"):
        load_openvla(tmp_path / "only")


def test_an_unknown_openvla_dataset_is_named_with_the_closest(tmp_path):
    file = write(tmp_path / "dataset_statistics.json", openvla_stats("libero_goal", "bridge"))
    with pytest.raises(UnknownName) as caught:
        load_openvla(tmp_path, "libero_gaol")
    assert "did you mean 'libero_goal'" in str(caught.value)
    assert f"libero_gaol and then libero_gaol_no_noops in {file}" in str(caught.value)
    with pytest.raises(PolicyError, match="2 datasets; choose one with unnorm_key: bridge, lib"):
        load_openvla(tmp_path)
    with pytest.raises(UnknownName, match="did you mean 'bounds"):
        load_openvla(tmp_path, "bridge", bounds="bounds_99")
    with pytest.raises(UnknownName, match="variant 'ofd'"):
        load_openvla(tmp_path, "bridge", variant="ofd")


def lerobot_stats():
    names = ("min", "max", "mean", "std", "q01", "q10", "q90", "q99")
    group = {name: [float(place), 1] for place, name in enumerate(names)}
    return {"observation.state": group, "action": group, "observation.image": {"mean": [[[0]]]}}


@pytest.mark.parametrize(
    ("mode", "kind", "first", "second"),
    [
        ("MEAN_STD", LerobotMeanStd, 2, 3),
        ("MIN_MAX", LerobotRange, 0, 1),
        ("QUANTILES", LerobotRange, 4, 7),
        ("QUANTILE10", LerobotRange, 5, 6),
    ],
)
def test_lerobot_modes_use_the_statistics_they_name(tmp_path, mode, kind, first, second):
    write(tmp_path / "meta" / "stats.json", lerobot_stats())
    loaded = load_lerobot(tmp_path, state=mode, actions="IDENTITY")
    assert loaded.actions is None
    assert type(loaded.state) is kind
    values = [getattr(loaded.state, name)[0] for name in loaded.state.statistics]
    assert values == [first, second]
    assert loaded.state.mode == f"lerobot {mode}"


def test_unknown_lerobot_modes_and_features_are_named_with_the_closest(tmp_path):
    file = write(tmp_path / "meta" / "stats.json", lerobot_stats())
    with pytest.raises(UnknownName, match="did you mean 'MEAN_STD'"):
        load_lerobot(tmp_path, state="MEANSTD")
    with pytest.raises(UnknownName, match=f"did you mean 'action'.*Looked in {file}"):
        load_lerobot(file, action_key="actions")

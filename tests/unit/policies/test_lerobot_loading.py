"""LeRobot's checkpoints by the names they have on the command line."""

import json
import sys
import tempfile
import types

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from lerobot_models import Generators, act_policy, batch_of, episode, processors

from polyarm.contracts import EnvSpec
from polyarm.errors import MissingExtra, PolicyError, UnknownName
from polyarm.policies.lerobot import LeRobotPolicy, lerobot_policy
from polyarm.policies.lerobot_processors import rename_map
from polyarm.policies.loading import checkpoint_path, expand_policies, load_policy, source_digest


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint as LeRobot's training writes it, and the policy in it."""
    folder, policy = tmp_path_factory.mktemp("run") / "pretrained_model", act_policy()
    for part in (policy, *processors(policy)):
        part.save_pretrained(folder)
    return folder, policy


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    """LeRobot leaves a file where temporary files are, whenever it reads a configuration."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def load(name):
    return load_policy(f"lerobot:{name}", None)


def changed(saved, tmp_path, **settings):
    """A copy of the checkpoint with other settings."""
    folder = tmp_path / "changed"
    folder.mkdir()
    for file in saved[0].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    return folder


def test_a_saved_policy_acts_as_before_with_its_statistics(saved):
    folder, policy = saved
    before, after = processors(policy)
    expected = LeRobotPolicy(policy, preprocessor=before, postprocessor=after)
    loaded, row = load(folder), episode(0, steps=1)
    np.testing.assert_array_equal(
        loaded.act(batch_of([row], 0, Generators())), expected.act(batch_of([row], 0, Generators()))
    )
    assert loaded.fingerprint == expected.fingerprint
    assert loaded.device == torch.device("cpu")


def test_a_rename_map_gives_the_policys_names_to_what_the_env_shows(saved, tmp_path):
    image = {"type": "VISUAL", "shape": [3, 64, 64]}
    state = {"type": "STATE", "shape": [4]}
    folder = changed(
        saved,
        tmp_path,
        input_features={"observation.state": state, "observation.images.top": image},
    )
    spec = EnvSpec("metaworld", "reach-v3", cameras=("corner2",), image_size=(64, 64))
    with pytest.raises(PolicyError, match=r"images\.top, but .* shows observation\.image;.*@FILE"):
        load(folder).check_spec(spec)
    renaming = tmp_path / "names.json"
    renaming.write_text(json.dumps({"observation.image": "observation.images.top"}))
    loaded = load(f"{folder}@{renaming}")
    loaded.check_spec(spec)
    assert loaded.act(batch_of([episode(0, 1)], 0, Generators())).shape == (1, 3, 4)
    # Two maps are two policies, and the same folder.
    name = f"lerobot:{folder}@{renaming}"
    assert checkpoint_path(name) == folder
    before = source_digest(name)
    renaming.write_text("{}")
    assert source_digest(name) != before


def test_a_rename_map_that_was_saved_with_the_policy_holds(saved, tmp_path):
    folder = changed(saved, tmp_path)
    file = folder / "policy_preprocessor.json"
    steps = json.loads(file.read_text())
    (renaming,) = [step for step in steps["steps"] if "rename" in step["registry_name"]]
    renaming["config"]["rename_map"] = {"observation.image": "observation.images.top"}
    file.write_text(json.dumps(steps))
    assert rename_map(load(folder)._preprocessor) == renaming["config"]["rename_map"]
    own = lerobot_policy(str(folder), rename_map={"observation.a": "observation.b"})
    assert rename_map(own._preprocessor) == {"observation.a": "observation.b"}


@pytest.mark.parametrize("text", ["{", "[]", '{"observation.image": 1}'])
def test_what_is_no_rename_map_is_refused(saved, tmp_path, text):
    renaming = tmp_path / "names.json"
    renaming.write_text(text)
    with pytest.raises(PolicyError, match=r"the rename map .*names\.json"):
        load(f"{saved[0]}@{renaming}")
    with pytest.raises(PolicyError, match="cannot be read"):
        load(f"{saved[0]}@{tmp_path / 'missing.json'}")


def test_a_glob_stands_for_all_checkpoints_of_a_run_each_once(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    pattern = f"{checkpoints}/*/pretrained_model"
    (checkpoints / "000200" / "pretrained_model").mkdir(parents=True)
    # Alone it has the label that it keeps beside others, so that a later run goes on with it.
    assert [label for label, _ in expand_policies(f"lerobot:{pattern}")] == ["000200"]
    (checkpoints / "001000" / "pretrained_model").mkdir(parents=True)
    (checkpoints / "last").symlink_to("001000")  # as LeRobot does; it is the same policy
    named = expand_policies(f"lerobot:{pattern}@names.json")
    assert [label for label, _ in named] == ["000200", "001000"]
    assert named[1][1] == f"lerobot:{pattern.replace('*', '001000')}@names.json"
    assert expand_policies("lerobot:org/act_libero") == [("act_libero", "lerobot:org/act_libero")]
    assert checkpoint_path("lerobot:org/act_libero") is None


# What cannot be loaded.


def test_a_folder_that_is_no_checkpoint_says_where_one_is(saved, tmp_path):
    with pytest.raises(PolicyError, match=r"did you mean lerobot:.*pretrained_model\?"):
        load(saved[0].parent)
    with pytest.raises(PolicyError, match=r"there is no config\.json$"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "./a/b", "/no/such/folder"])
def test_a_path_that_does_not_exist_is_not_looked_for_on_the_hub(name):
    with pytest.raises(PolicyError, match=f"there is no folder '{name}'"):
        load(name)


def test_a_repository_that_cannot_be_reached_is_named(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PolicyError, match=r"policy 'nobody/nothing'.*no such folder in .* the Hub"):
        load("nobody/nothing")


def test_a_type_that_lerobot_does_not_know_is_named(saved, tmp_path):
    with pytest.raises(PolicyError, match="acct"):
        load(changed(saved, tmp_path, type="acct"))


def test_a_model_that_does_not_say_what_it_misses_is_suspected(saved, tmp_path, monkeypatch):
    def fails(kind):
        raise TypeError("'NoneType' object is not subscriptable")  # pi0 in LeRobot 0.4.4

    monkeypatch.setattr("lerobot.policies.factory.get_policy_class", fails)
    monkeypatch.setattr("polyarm.policies.lerobot.find_spec", lambda name: None)
    with pytest.raises(PolicyError, match=r"NoneType.*the transformers library"):
        load(saved[0])


def test_a_checkpoint_without_processors_is_refused(saved, tmp_path):
    folder = changed(saved, tmp_path)
    (folder / "policy_preprocessor.json").unlink()
    with pytest.raises(PolicyError, match="policy_preprocessor"):
        load(folder)


def test_without_lerobot_the_command_that_installs_it_is_named(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "lerobot.policies.factory", None)
    with pytest.raises(MissingExtra, match=r"pip install 'polyarm\[lerobot\]'"):
        load(saved[0])


def test_no_checkpoint_at_all_is_an_unknown_policy():
    with pytest.raises(UnknownName, match="lerobot:<path or repo id>"):
        load("")


# Adapters. PEFT itself is not among the libraries of the tests.


def test_adapters_without_peft_name_what_is_missing(saved, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtra, match="peft"):
        load(changed(saved, tmp_path, use_peft=True))


def test_adapters_on_another_policy_are_another_policy(tmp_path):
    adapters, base = tmp_path / "adapters", tmp_path / "base"
    for folder in (adapters, base):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    name = f"lerobot:{adapters}"
    assert source_digest(name) == ""
    for text in ("{", "[]", "{}", '{"base_model_name_or_path": null}'):
        (adapters / "adapter_config.json").write_text(text)
        assert source_digest(name) == ""
    named = {"base_model_name_or_path": str(base)}
    (adapters / "adapter_config.json").write_text(json.dumps(named))
    before = source_digest(name)
    assert before
    (base / "model.safetensors").write_bytes(b"other weights")
    assert source_digest(name) not in ("", before)


def test_adapters_are_put_onto_the_policy_that_they_name(saved, tmp_path, monkeypatch):
    folder = changed(saved, tmp_path, use_peft=True)
    (folder / "model.safetensors").unlink()  # an adapter's folder holds no weights of the policy
    asked = []

    class PeftConfig:
        @classmethod
        def from_pretrained(cls, path):
            asked.append(path)
            return types.SimpleNamespace(base_model_name_or_path=str(saved[0]))

    class PeftModel:
        def __init__(self, policy):
            self.policy = policy

        @classmethod
        def from_pretrained(cls, policy, path, config):
            asked.append(path)
            return cls(policy)

        def to(self, device):
            return self

        def get_base_model(self):
            return self.policy

    double = types.ModuleType("peft")
    double.PeftConfig, double.PeftModel = PeftConfig, PeftModel
    monkeypatch.setitem(sys.modules, "peft", double)
    loaded, row = load(folder), episode(0, steps=1)
    assert asked == [str(folder), str(folder)]
    expected = load(saved[0]).act(batch_of([row], 0, Generators()))
    np.testing.assert_array_equal(loaded.act(batch_of([row], 0, Generators())), expected)

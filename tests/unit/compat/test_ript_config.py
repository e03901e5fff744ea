"""A trainer's configuration chooses the runner; what is misspelt in it is told."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from omegaconf import OmegaConf

from polyarm.compat.ript import PI0LiberoRunner, create_env_runner, example_config
from polyarm.compat.ript.config import KEYS, read_config
from polyarm.errors import InvalidCall, StorageError, UnknownName

CONFIG = {
    "exp_name": "theirs",
    "features": {"use_ript_vla_runner": True, "enable_smart_sampling": True, "save_video": False},
    "task": {
        "benchmark_name": "libero_goal",
        "num_parallel_envs": 3,
        "task_names_to_use": ["put_the_bowl_on_the_stove", "open_the_middle_drawer_of_the_cabinet"],
        "max_episode_length": 50,
        "n_tasks": 10,
        "demos_per_env": 50,
    },
    "algo": {"rollouts_per_env": 7, "rloo_batch_size": 4, "lr": 1e-5, "num_epochs": 1},
    "test": {"debug_mode": False, "verbose_logging": False},
    "training": {"n_steps": 2},
}


def changed(section, **values):
    config = copy.deepcopy(CONFIG)
    config.setdefault(section, {}).update(values)
    return config


def namespace(value):
    if isinstance(value, dict):
        return SimpleNamespace(**{name: namespace(each) for name, each in value.items()})
    return value


def slotted(value):
    """An object without a ``__dict__``, all of whose values are its class's."""
    if isinstance(value, dict):
        own = {name: slotted(each) for name, each in value.items()}
        return type("Config", (), {"__slots__": (), **own})()
    return value


@pytest.fixture(params=["mapping", "omegaconf", "attributes", "class attributes", "file"])
def config(request, tmp_path):
    """The same configuration in every form."""
    if request.param == "omegaconf":
        return OmegaConf.create(CONFIG)
    if request.param == "attributes":
        return namespace(CONFIG)
    if request.param == "class attributes":
        return slotted(CONFIG)
    if request.param == "file":
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
        return tmp_path / "config.yaml"
    return CONFIG


def test_every_form_of_a_configuration_makes_the_same_runner(config):
    runner = create_env_runner(config, "random", rank=1, world_size=2)
    assert isinstance(runner, PI0LiberoRunner)
    assert (runner.rollouts_per_env, runner.num_parallel_envs) == (7, 3)
    assert (runner.rank, runner.max_episode_length) == (1, 50)
    assert runner.env_names_to_run == [
        "open_the_middle_drawer_of_the_cabinet",
        "put_the_bowl_on_the_stove",
    ]


def test_the_configuration_that_ships_is_read_and_chooses_the_runner():
    asked = read_config(str(example_config()))
    assert asked.use_ript_vla_runner
    assert asked.parallel == {"enable_parallel_envs": False, "enable_true_parallel_envs": False}
    create_env_runner(example_config(), None)


@pytest.mark.parametrize("features", [{"use_ript_vla_runner": False}, {}, None])
def test_where_the_runner_is_not_chosen_the_fallback_comes_back(features):
    config = {"features": features, "task": {"benchmark_name": "anything"}}
    runner = object()
    assert create_env_runner(config, "policy", fallback=runner) is runner
    seen = []

    def fallback(*arguments, **named):
        seen.append((arguments, named))
        return runner

    assert create_env_runner(config, "policy", 1, 4, fallback) is runner
    assert seen == [((config, "policy"), {"rank": 1, "world_size": 4})]
    with pytest.raises(InvalidCall, match="no fallback"):
        create_env_runner(config, "policy")


@pytest.mark.parametrize("switch", ["enable_parallel_envs", "enable_true_parallel_envs"])
@pytest.mark.parametrize("value", [True, False])
def test_older_switches_change_nothing_about_the_runner(switch, value):
    plain = create_env_runner(CONFIG, "random")
    runner = create_env_runner(changed("features", **{switch: value}), "random")
    assert runner.num_parallel_envs == plain.num_parallel_envs == 3


@pytest.mark.parametrize(
    ("section", "name", "right"),
    [
        ("features", "use_ript_runner", "features.use_ript_vla_runner"),
        ("features", "use_vla_runner", "features.use_ript_vla_runner"),
        ("features", "enable_true_paralel_envs", "features.enable_true_parallel_envs"),
        ("task", "num_paralel_envs", "task.num_parallel_envs"),
        ("task", "benchmarkname", "task.benchmark_name"),
        ("task", "task_names_touse", "task.task_names_to_use"),
        ("algo", "rollout_per_env", "algo.rollouts_per_env"),
        ("test", "verbose_loging", "test.verbose_logging"),
        ("feature", "use_ript_vla_runner", "features"),
        ("tasks", "benchmark_name", "task"),
    ],
)
def test_a_misspelt_key_is_an_error_that_has_the_right_name(section, name, right):
    with pytest.raises(UnknownName, match=f"did you mean '{right}'"):
        create_env_runner(changed(section, **{name: 1}), "random", fallback=object())


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("", ("exp_name", "seed", "device", "stage", "rollout", "dataset", "logging", "paths")),
        ("", ("policy", "stats_path", "output_dir", "env", "debug", "distributed", "training")),
        ("task", ("task_name", "suite_name", "mode", "horizon", "n_tasks", "env_runner")),
        ("algo", ("demo_batch_size", "ppo_batch_size", "rollout_training_task_names", "lr")),
        ("algo", ("rollout_stats_path", "rollout_skip_threshold", "rollout_generator_factory")),
        ("features", ("enable_task_polling", "enable_smart_sampling", "use_parallel_init_state")),
        ("features", ("enable_file_counter", "adaptive_cfg", "early_stop_percentage")),
    ],
)
def test_keys_of_the_trainers_are_ignored(section, names):
    values = dict.fromkeys(names, "theirs")
    config = changed(section, **values) if section else {**CONFIG, **values}
    assert create_env_runner(config, "random").num_parallel_envs == 3


def test_values_of_the_trainers_are_not_even_resolved():
    theirs = {"data": "${nowhere.to.be.found}", "task": {"dataset": "${eval:1+1}"}}
    config = OmegaConf.merge(OmegaConf.create(CONFIG), OmegaConf.create(theirs))
    assert create_env_runner(config, "random").rollouts_per_env == 7


def test_values_of_ours_may_refer_to_others():
    config = OmegaConf.create(changed("task", num_parallel_envs="${algo.rloo_batch_size}"))
    assert create_env_runner(config, "random").num_parallel_envs == 4


def test_the_original_scripts_names_of_the_numbers_are_understood():
    config = copy.deepcopy(CONFIG)
    del config["algo"]["rollouts_per_env"], config["task"]["num_parallel_envs"]
    config["algo"]["num_parallel_envs"] = 5
    runner = create_env_runner(config, "random")
    assert (runner.rollouts_per_env, runner.num_parallel_envs) == (4, 5)


@pytest.mark.parametrize(
    ("section", "name", "value", "told"),
    [
        ("features", "use_ript_vla_runner", "yes", "features.use_ript_vla_runner is true or false"),
        ("task", "num_parallel_envs", 0, "task.num_parallel_envs must be a whole number from 1"),
        ("task", "num_parallel_envs", True, "whole number from 1 on, found True"),
        ("task", "benchmark_name", None, "task.benchmark_name must be a name"),
        ("task", "task_names_to_use", "put_the_bowl_on_the_stove", "list of task names"),
        ("algo", "rollouts_per_env", 2.5, "algo.rollouts_per_env must be a whole number"),
        ("task", "max_episode_length", -1, "task.max_episode_length"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_key(section, name, value, told):
    with pytest.raises(InvalidCall, match=told):
        create_env_runner(changed(section, **{name: value}), "random")


def test_numbers_that_are_missing_are_named():
    config = copy.deepcopy(CONFIG)
    del config["algo"]
    with pytest.raises(InvalidCall, match=r"no algo.rollouts_per_env or algo.rloo_batch_size"):
        create_env_runner(config, "random")


def test_unknown_benchmarks_and_tasks_are_told_with_the_closest():
    with pytest.raises(UnknownName, match="did you mean 'libero_goal'"):
        create_env_runner(changed("task", benchmark_name="libero_gaol"), "random")
    config = changed("task", task_names_to_use=["put_the_bowl_on_the_stoves"])
    with pytest.raises(UnknownName, match="did you mean 'put_the_bowl_on_the_stove'"):
        create_env_runner(config, "random")


@pytest.mark.parametrize("text", ["a: [", "just a word", "- 1\n- 2", ""])
def test_files_that_hold_no_configuration_are_refused(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(InvalidCall, match=r"config\.yaml"):
        read_config(tmp_path / "config.yaml")
    with pytest.raises(StorageError, match="No such file"):
        read_config(tmp_path / "other.yaml")


@pytest.mark.parametrize(
    ("switch", "level"), [("debug_mode", logging.DEBUG), ("verbose_logging", logging.INFO)]
)
def test_switches_for_logging_let_the_runners_messages_through(switch, level, monkeypatch):
    log = logging.getLogger("polyarm.compat.ript")
    monkeypatch.setattr(log, "level", logging.NOTSET)
    create_env_runner(CONFIG, "random")
    assert log.level == logging.NOTSET
    create_env_runner(changed("test", **{switch: True}), "random")
    assert log.level == level


def test_every_key_of_ours_is_in_the_document():
    text = (Path(__file__).parents[3] / "docs" / "ript.md").read_text()
    for section, names in KEYS.items():
        for name in names:
            assert f"`{section}.{name}`" in text

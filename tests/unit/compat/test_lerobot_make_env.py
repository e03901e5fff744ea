"""LeRobot's env configs and ours: each field honoured, or refused by its name."""

import inspect
import json
import os
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import lerobot_toys
import numpy as np
import pytest
from lerobot.configs.default import EvalConfig
from lerobot.envs import factory
from lerobot.envs.configs import AlohaEnv, EnvConfig, LiberoEnv, MetaworldEnv
from lerobot.scripts import lerobot_eval
from lerobot_reacher import PLUGIN  # and makes the plugin importable

from polyarm.compat.lerobot import eval_policy_all, make_env
from polyarm.errors import InvalidCall, MissingExtra, UnknownName

import lerobot_env_polyarm  # isort: skip
from lerobot_env_polyarm import PolyarmLibero, PolyarmMetaworld  # isort: skip


@EnvConfig.register_subclass("polyarm_test_toy")
@dataclass
class ToyConfig(EnvConfig):
    task: str = "Reach-v0"
    obs_type: str = "state"

    @property
    def package_name(self):
        return "lerobot_toys"

    @property
    def gym_kwargs(self):
        return {"obs_type": self.obs_type}


def names(envs):
    return {group: list(tasks) for group, tasks in envs.items()}


def options(env):
    return env.plan.spec.options


# Tasks.


def test_a_comma_list_of_libero_suites_gives_every_task_of_each():
    envs = make_env(LiberoEnv(task="libero_10, libero_goal"), n_envs=2)
    assert names(envs) == {"libero_10": list(range(10)), "libero_goal": list(range(10))}
    env = envs["libero_goal"][3]
    assert env.num_envs == 2
    assert env.call("task") == ("open_the_top_drawer_and_put_the_bowl_inside",) * 2
    assert env.call("task_description") == ("open the top drawer and put the bowl inside",) * 2
    assert env.get_attr("_max_episode_steps") == (300, 300)


def test_task_ids_choose_places_in_each_suite():
    envs = make_env(LiberoEnv(task="libero_spatial", task_ids=[7, 2, 2]))
    assert names(envs) == {"libero_spatial": [2, 7]}
    with pytest.raises(UnknownName, match="task id '10'"):
        make_env(LiberoEnv(task="libero_spatial", task_ids=[10]))
    with pytest.raises(InvalidCall, match="task_ids is empty"):
        make_env(LiberoEnv(task="libero_spatial", task_ids=[]))


def test_metaworlds_groups_names_and_words_are_lerobots():
    file = Path(factory.__file__).with_name("metaworld_config.json")
    theirs = json.loads(file.read_text())
    groups = theirs["DIFFICULTY_TO_TASKS"]
    envs = make_env(MetaworldEnv(task=",".join(groups)))
    assert {
        group: [env.call("task")[0] for env in tasks.values()] for group, tasks in envs.items()
    } == groups
    for tasks in envs.values():
        for env in tasks.values():
            words = theirs["TASK_DESCRIPTIONS"][env.call("task")[0]]
            assert env.call("task_description") == (words,)


def test_a_metaworld_task_may_carry_lerobots_prefix():
    envs = make_env(MetaworldEnv(task="metaworld-push-v3,reach-v3"))
    assert names(envs) == {"metaworld-push-v3": [0], "reach-v3": [0]}
    assert envs["metaworld-push-v3"][0].call("task") == ("push-v3",)


def test_an_unknown_task_is_refused_with_the_closest_one():
    with pytest.raises(UnknownName, match="did you mean 'libero_goal'"):
        make_env(LiberoEnv(task="libero_gaol"))
    with pytest.raises(UnknownName, match="end in -v3"):
        make_env(MetaworldEnv())  # LeRobot's default is a task of version 2
    with pytest.raises(InvalidCall, match="needs a task"):
        make_env(LiberoEnv(task=" , "))


def test_a_config_can_be_named_by_its_type():
    assert list(make_env("libero")) == ["libero_10"]
    assert list(make_env("polyarm_metaworld")) == ["push-v3"]
    with pytest.raises(UnknownName, match="env type 'libreo'; did you mean 'libero'"):
        make_env("libreo")


def test_an_env_of_the_hub_is_lerobots_affair_and_needs_consent():
    with pytest.raises(RuntimeError, match="Refusing to execute remote code"):
        make_env("someone/some-env")
    with pytest.raises(RuntimeError, match="Refusing to execute remote code"):
        make_env("isaaclab_arena")


def test_a_single_gymnasium_env_is_made_from_its_package():
    envs = make_env(ToyConfig(), n_envs=1)
    assert names(envs) == {"polyarm_test_toy": [0]}
    env = envs["polyarm_test_toy"][0]
    try:
        assert env.single_action_space.shape == (4,)
        assert env.call("_max_episode_steps") == (60,)
        assert env.unwrapped.metadata["render_fps"] == lerobot_toys.ReachEnv.metadata["render_fps"]
    finally:
        env.close()


def test_a_gymnasium_env_whose_package_is_missing_says_what_to_install():
    with pytest.raises(MissingExtra, match="pip install gym-aloha"):
        make_env(AlohaEnv())


# Fields.


def test_libero_plays_by_lerobots_rules():
    env = make_env(LiberoEnv(task="libero_spatial"))["libero_spatial"][0]
    chosen = options(env)
    assert chosen["protocol"] == "lerobot"
    assert (chosen["orientation"], chosen["robot_state"]) == ("raw", True)
    assert (chosen["max_steps"], chosen["control"]) == (280, "relative")
    assert env.plan.spec.image_size == (360, 360)
    assert env.metadata["render_fps"] == 80
    state = env.single_observation_space["robot_state"]
    assert state["eef"]["mat"].shape == (3, 3)
    assert list(env.single_observation_space["pixels"]) == ["image", "image2"]
    assert env.observation_space["pixels"]["image"].shape == (1, 360, 360, 3)


def test_libero_honours_what_a_config_says():
    env = make_env(
        LiberoEnv(
            task="libero_goal",
            episode_length=77,
            control_mode="absolute",
            obs_type="pixels",
            camera_name="robot0_eye_in_hand_image",
            camera_name_mapping={"robot0_eye_in_hand_image": "wrist"},
            observation_height=96,
            observation_width=128,
        )
    )["libero_goal"][0]
    assert (options(env)["max_steps"], options(env)["control"]) == (77, "absolute")
    space = env.single_observation_space
    assert list(space) == ["pixels"]
    assert {name: box.shape for name, box in space["pixels"].items()} == {"wrist": (96, 128, 3)}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("init_states", False, "init_states=False"),
        ("is_libero_plus", True, "LIBERO-plus"),
        ("camera_name", "frontview_image", "camera_name_mapping"),
        ("control_mode", "sideways", "value of control"),
        ("episode_length", 0, "value of max_steps"),
        ("obs_type", "state", "obs_type 'state'"),
        ("physics", "mars", "physics='mars'.*may change the score"),
    ],
)
def test_what_libero_cannot_honour_is_refused(field, value, words):
    @dataclass
    class Newer(LiberoEnv):  # fields that other versions of LeRobot have, or will have
        is_libero_plus: bool = False
        physics: str = "earth"
        type = "libero"

    cfg = Newer(task="libero_goal")
    setattr(cfg, field, value)
    with pytest.raises((InvalidCall, UnknownName), match=words):
        make_env(cfg)


def test_another_control_rate_is_refused_where_lerobot_would_use_it():
    @dataclass
    class Newer(LiberoEnv):
        type = "libero"

        @property
        def gym_kwargs(self):
            return {"control_freq": self.fps}

    assert make_env(Newer(task="libero_goal", fps=20))
    with pytest.raises(InvalidCall, match="fps=30; use 20"):
        make_env(Newer(task="libero_goal", fps=30))


def test_metaworld_plays_as_long_as_in_lerobot_unless_told_otherwise():
    def horizon(cfg):
        return make_env(cfg)["reach-v3"][0].call("_max_episode_steps")[0]

    assert horizon(MetaworldEnv(task="reach-v3")) == 500  # LeRobot's env ignores the field's 400
    assert horizon(MetaworldEnv(task="reach-v3", episode_length=60)) == 60
    assert horizon(PolyarmMetaworld(task="reach-v3")) == 500
    assert horizon(PolyarmMetaworld(task="reach-v3", episode_length=400)) == 400


def test_metaworld_shows_what_a_config_asks_for():
    own = make_env(MetaworldEnv(task="reach-v3"))["reach-v3"][0].single_observation_space
    assert own["pixels"].shape == (480, 480, 3)
    assert (own["agent_pos"].shape, own["agent_pos"].dtype) == ((4,), np.float64)
    small = PolyarmMetaworld(task="reach-v3", observation_height=64, observation_width=48)
    space = make_env(small)["reach-v3"][0].single_observation_space
    assert space["pixels"].shape == (64, 48, 3) == small.features["pixels/top"].shape
    blind = PolyarmMetaworld(task="reach-v3", obs_type="state")
    assert list(make_env(blind)["reach-v3"][0].single_observation_space) == ["agent_pos"]
    assert set(blind.features) == {"action", "agent_pos"}
    with pytest.raises(ValueError, match="obs_type"):
        PolyarmMetaworld(task="reach-v3", obs_type="sate")
    with pytest.raises(UnknownName, match="camera of metaworld"):
        make_env(PolyarmMetaworld(task="reach-v3", camera_name="corner9"))


def test_no_env_at_all_is_refused():
    with pytest.raises(InvalidCall, match="n_envs must be at least 1"):
        make_env(LiberoEnv(), n_envs=0)


def test_nothing_is_built_before_the_first_reset():
    before = set(sys.modules), set(os.listdir("/proc/self/task")), children()
    envs = make_env(LiberoEnv(task="libero_90"), n_envs=8)
    for env in envs["libero_90"].values():
        env.close()
    assert envs["libero_90"][89].call("task_description")
    assert envs["libero_90"][89].observation_space["pixels"]["image"].shape == (8, 360, 360, 3)
    assert (set(os.listdir("/proc/self/task")), children()) == before[1:]
    assert not {"mujoco", "robosuite", "libero"} & (set(sys.modules) - before[0])


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


# The plugin.


def test_the_plugins_configs_are_registered_and_made_by_lerobots_own_make_env():
    known = EnvConfig.get_known_choices()
    assert (known["polyarm_libero"], known["polyarm_metaworld"]) == (
        PolyarmLibero,
        PolyarmMetaworld,
    )
    envs = lerobot_eval.make_env(
        PolyarmLibero(task="libero_goal"), n_envs=2, use_async_envs=False, trust_remote_code=False
    )
    assert names(envs) == {"libero_goal": list(range(10))}
    assert {env.runner for env in envs["libero_goal"].values()} == {"polyarm"}
    assert envs["libero_goal"][0].plan.options["protocol"] == "lerobot"


def test_lerobot_finds_the_plugin_by_the_name_of_its_distribution():
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    assert project["name"] == lerobot_env_polyarm.__name__
    assert project["name"].startswith("lerobot_env_")


def test_other_configs_are_still_lerobots_own():
    with pytest.raises(ModuleNotFoundError, match="gym_aloha"):
        factory.make_env(cfg=AlohaEnv(), n_envs=1)


def test_the_plugins_libero_gets_lerobots_processor():
    from lerobot.policies.act.configuration_act import ACTConfig

    before, after = factory.make_env_pre_post_processors(PolyarmLibero(), ACTConfig())
    assert [type(step).__name__ for step in before.steps] == ["LiberoProcessorStep"]
    assert not after.steps


def test_lerobots_threads_are_refused_because_they_share_a_policy():
    with pytest.raises(ValueError, match="wrong scores"):
        PolyarmLibero(runner="lerobot", max_parallel_tasks=4)
    assert PolyarmLibero(max_parallel_tasks=4).max_parallel_tasks == 4
    with pytest.raises(ValueError, match="runner is polyarm or lerobot"):
        PolyarmMetaworld(runner="someone")


# Signatures.


def test_make_env_is_called_like_lerobots():
    ours, theirs = inspect.signature(make_env), inspect.signature(factory.make_env)
    assert list(ours.parameters) == list(theirs.parameters)
    for name, parameter in theirs.parameters.items():
        assert ours.parameters[name].kind == parameter.kind
        if name != "use_async_envs":  # ours have workers by themselves
            assert ours.parameters[name].default == parameter.default


def test_eval_policy_all_is_called_like_lerobots():
    ours = inspect.signature(eval_policy_all).parameters
    theirs = inspect.signature(lerobot_eval.eval_policy_all).parameters
    newer = {"recording_dir", "env_features", "recording_repo_id", "recording_private"}
    assert set(ours) == set(theirs) | newer
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert [name for name in ours if ours[name].kind is positional] == [
        name for name in theirs if theirs[name].kind is positional
    ]
    for name, parameter in theirs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default)


def test_lerobot_itself_never_has_more_envs_than_episodes():
    if version("lerobot").startswith("0.4."):
        with pytest.raises(ValueError, match="batch size is greater"):
            EvalConfig(n_episodes=2, batch_size=3)
    else:
        assert EvalConfig(n_episodes=2, batch_size=3).batch_size == 2

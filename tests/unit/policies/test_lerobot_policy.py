"""LeRobot's policies in our runner give what LeRobot gives an episode alone."""

from collections import deque

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from lerobot.envs.utils import preprocess_observation
from lerobot_models import (
    IMAGE,
    STATE,
    Generators,
    act_policy,
    batch_of,
    diffusion_policy,
    episode,
    processors,
    run_rows,
    tiny_vla,
    upstream_actions,
    vqbet_policy,
)

import polyarm
from polyarm.contracts import EnvSpec, EpisodeKey
from polyarm.errors import PolicyError
from polyarm.policies.lerobot import LeRobotPolicy
from polyarm.policies.lerobot_observations import image_keys, to_lerobot
from polyarm.testing.policies import check_policy

pytestmark = pytest.mark.usefixtures("one_torch_thread")

ENSEMBLE = {"n_action_steps": 1, "temporal_ensemble_coeff": 0.1}
METAWORLD = EnvSpec("metaworld", "reach-v3", cameras=("corner2",), image_size=(64, 64))


def wrapped(policy):
    before, after = processors(policy)
    return LeRobotPolicy(policy, preprocessor=before, postprocessor=after)


def one_by_one(ready):
    return [[row] for row in ready]


MODELS = {
    "act": act_policy,
    "act, ensembling": lambda: act_policy(**ENSEMBLE),
    "diffusion, ddpm": diffusion_policy,
    "diffusion, ddim": lambda: diffusion_policy(noise_scheduler_type="DDIM"),
    "diffusion, one observation": lambda: diffusion_policy(n_obs_steps=1),
    "vq-bet": vqbet_policy,
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_each_episode_gets_what_lerobot_gives_it_alone(make):
    policy = make()
    rows = [episode(index, steps=7) for index in range(2)]
    expected = [upstream_actions(policy, processors(policy), row) for row in rows]
    ours = run_rows(wrapped(policy), rows, one_by_one)
    np.testing.assert_array_equal(ours, expected)
    # In larger batches PyTorch may sum in another order.
    together = run_rows(wrapped(policy), rows)
    np.testing.assert_allclose(together, expected, rtol=1e-3, atol=1e-4)
    assert np.abs(np.subtract(ours[0], ours[1])).max() > 1e-3, "all episodes are alike"


@pytest.mark.parametrize("make", [diffusion_policy, lambda: act_policy(**ENSEMBLE)])
def test_episodes_that_begin_and_end_at_different_steps_do_not_mix(make):
    policy = make()
    (early, seen), (late, seen_late) = rows = [episode(index, steps=6) for index in range(2)]
    expected = [upstream_actions(policy, processors(policy), row) for row in rows]
    ours, generators = wrapped(policy), Generators()
    ours.begin([early])
    taken = {early: [], late: []}
    for step in range(8):  # the second begins two steps later, the first ends two steps earlier
        if step == 2:
            ours.begin([late])
        if step == 6:
            ours.end([early])
        present = [(early, seen, step)] if step < 6 else []
        present += [(late, seen_late, step - 2)] if step >= 2 else []
        moved = [(key, [observations[at]]) for key, observations, at in present]
        for (key, _), action in zip(moved, ours.act(batch_of(moved, 0, generators)), strict=True):
            taken[key].append(action[0])
    np.testing.assert_allclose([taken[early], taken[late]], expected, rtol=1e-3, atol=1e-4)
    ours.end([late])
    assert not ours._episodes
    # Nor is anything left in the policy itself.
    assert not any(getattr(policy, "_queues", {}).values())


@pytest.mark.parametrize("make", [diffusion_policy, lambda: act_policy(**ENSEMBLE)])
def test_an_episode_that_begins_again_has_forgotten_its_first_attempt(make):
    ours, row = wrapped(make()), episode(0, steps=4)
    first = run_rows(ours, [row])
    ours.act(batch_of([row], 0, Generators()))
    ours.act(batch_of([row], 1, Generators()))
    np.testing.assert_array_equal(run_rows(ours, [row]), first)


@pytest.mark.parametrize("make", [diffusion_policy, lambda: act_policy(**ENSEMBLE)])
def test_what_failed_for_want_of_memory_can_be_asked_again(make, monkeypatch):
    policy = make()
    ours, rows = wrapped(policy), [episode(index, steps=3) for index in range(2)]
    expected = run_rows(ours, rows, one_by_one)
    predict, failures = policy.predict_action_chunk, []

    def fails_for_two(inputs):
        if len(inputs["observation.state"]) > 1:
            failures.append(True)
            raise torch.OutOfMemoryError("no")
        return predict(inputs)

    monkeypatch.setattr(policy, "predict_action_chunk", fails_for_two)

    ours.begin([key for key, _ in rows])
    generators, taken = Generators(), {key: [] for key, _ in rows}
    for step in range(3):
        spare = Generators()
        if make is not diffusion_policy or step % 3 == 0:
            with pytest.raises(torch.OutOfMemoryError):
                ours.act(batch_of(rows, step, spare))
        for row in rows:
            taken[row[0]].append(ours.act(batch_of([row], step, generators))[0, 0])
    np.testing.assert_array_equal([taken[key] for key, _ in rows], expected)
    assert failures


def test_rows_of_several_tasks_share_a_batch_and_each_is_told_its_own():
    policy = tiny_vla()
    rows = [episode(0, steps=2), episode(0, steps=2, task="push-v3")]
    ours = LeRobotPolicy(policy)
    first, second = run_rows(ours, rows)
    assert policy.told[-1] == ["do reach-v3", "do push-v3"]
    for row, expected in zip(rows, (first, second), strict=True):
        (alone,) = run_rows(ours, [row])
        np.testing.assert_allclose(alone, expected, rtol=1e-5)
    # Both saw the same numbers; words and noise are what differs.
    assert np.abs(first - second).min() > 1e-3


def test_only_rows_without_a_plan_are_asked_about_each_with_its_own_words(monkeypatch):
    policy = tiny_vla()

    def with_history():
        policy._queues = {"action": deque(maxlen=2), "observation.state": deque(maxlen=2)}

    monkeypatch.setattr(policy, "reset", with_history)
    policy.reset()
    early, late = episode(0, steps=3), episode(0, steps=3, task="push-v3")
    ours, generators = LeRobotPolicy(policy), Generators()
    ours.begin([early[0], late[0]])
    ours.act(batch_of([early], 0, generators))
    for step in (1, 2):
        ours.act(batch_of([early, late], step, generators))
    _, *told = policy.told  # asked once in vain: only then does it show that it draws
    assert told == [["do reach-v3"], ["do push-v3"], ["do reach-v3"]]


def test_noise_is_the_episodes_own_and_new_at_every_decision():
    ours, (key, observations) = LeRobotPolicy(tiny_vla()), episode(3, steps=1)
    generators = Generators()
    twice = [ours.act(batch_of([(key, observations)], 0, generators)) for _ in range(2)]
    assert np.abs(twice[0] - twice[1]).min() > 1e-4
    torch.manual_seed(5)  # whatever others draw
    before = torch.random.get_rng_state()
    again = ours.act(batch_of([(key, observations)], 0, Generators()))
    np.testing.assert_array_equal(again, twice[0])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_compiled_model_gets_its_noise_as_an_argument(monkeypatch):
    ours = LeRobotPolicy(tiny_vla(compile_model=True))
    rows = [episode(index, steps=1) for index in range(2)]
    expected = [ours.act(batch_of([row], 0, Generators()))[0] for row in rows]
    monkeypatch.delattr(torch, "normal")  # it must not draw any itself
    together = ours.act(batch_of(rows, 0, Generators()))
    np.testing.assert_allclose(together, expected, rtol=1e-5)
    again = {key: key.generator() for key, _ in rows}
    for generator in again.values():
        generator.integers(5)
    assert np.abs(ours.act(batch_of(rows, 0, again)) - together).min() > 1e-4


def test_as_many_actions_are_executed_as_lerobot_would():
    assert LeRobotPolicy(act_policy()).execute == 3
    assert LeRobotPolicy(act_policy(**ENSEMBLE)).execute == 1
    assert LeRobotPolicy(diffusion_policy()).execute == 1
    assert LeRobotPolicy(diffusion_policy(n_obs_steps=1)).execute == 3
    vla = LeRobotPolicy(tiny_vla(n_action_steps=3))
    assert vla.execute == 3
    assert vla.act(batch_of([episode(0, 1)], 0, Generators())).shape == (1, 3, 4)


def test_processors_get_one_step_at_a_time_as_in_lerobot():
    shapes = []

    def after(action):
        shapes.append(tuple(action.shape))
        return action * 2

    def around(transition):
        return {"action": transition["action"] + 1}

    plain = LeRobotPolicy(tiny_vla())
    ours = LeRobotPolicy(tiny_vla(), postprocessor=after, env_postprocessor=around)
    rows = [episode(index, steps=1) for index in range(3)]
    expected = plain.act(batch_of(rows, 0, Generators())) * 2 + 1
    np.testing.assert_array_equal(ours.act(batch_of(rows, 0, Generators())), expected)
    assert shapes == [(3, 4), (3, 4)]


def test_a_policy_in_training_is_asked_in_eval_mode():
    policy = tiny_vla()
    ours, row = LeRobotPolicy(policy), episode(0, steps=1)
    expected = ours.act(batch_of([row], 0, Generators()))
    policy.train()
    np.testing.assert_array_equal(ours.act(batch_of([row], 0, Generators())), expected)


@pytest.mark.parametrize("use_amp", [True, False])
def test_mixed_precision_is_used_where_the_policy_says_so(use_amp, monkeypatch):
    policy, mixed = tiny_vla(use_amp=use_amp), []
    predict = policy.predict_action_chunk

    def watched(inputs):
        mixed.append(torch.is_autocast_enabled("cpu"))
        return predict(inputs)

    monkeypatch.setattr(policy, "predict_action_chunk", watched)
    actions = LeRobotPolicy(policy).act(batch_of([episode(0, steps=1)], 0, Generators()))
    assert set(mixed) == {use_amp}
    assert actions.dtype == np.float32


def test_what_is_observed_is_kept_when_the_env_overwrites_it():
    ours = LeRobotPolicy(diffusion_policy())
    row = episode(0, steps=4)
    expected = run_rows(ours, [row])
    shared = {name: value.copy()[np.newaxis] for name, value in row[1][0].items()}
    ours.begin([row[0]])
    generators, taken = Generators(), []
    for step in range(4):
        for name, value in shared.items():
            value[0] = row[1][step][name]
        batch = batch_of([row], step, generators)
        batch.obs.clear()
        batch.obs.update(shared)
        taken.append(ours.act(batch)[0, 0])
    np.testing.assert_array_equal([taken], expected)


def test_adapters_are_asked_through_the_policy_that_they_are_in():
    policy, row = diffusion_policy(), episode(0, steps=4)

    class Adapted:  # as PEFT's wrapper: attributes are read through it, but set on it
        def get_base_model(self):
            return policy

        def __getattr__(self, name):
            return getattr(policy, name)

    np.testing.assert_array_equal(
        run_rows(LeRobotPolicy(Adapted()), [row]), run_rows(LeRobotPolicy(policy), [row])
    )


def test_the_fingerprint_tells_weights_and_processors_apart():
    first = wrapped(act_policy()).fingerprint
    assert first == wrapped(act_policy()).fingerprint
    assert first["type"] == "act"
    assert first["weights"] != wrapped(act_policy(seed=1)).fingerprint["weights"]
    plain = LeRobotPolicy(act_policy()).fingerprint
    assert plain["weights"] == first["weights"]
    assert plain["processors"] != first["processors"]
    assert wrapped(act_policy(**ENSEMBLE)).fingerprint["ensemble"] == 0.1


# What does not fit.


def test_missing_observations_are_named_on_both_sides():
    ours = LeRobotPolicy(act_policy())
    key, (observation,) = episode(0, steps=1)
    two = {**observation, "pixels/corner": observation["pixels/corner2"]}
    with pytest.raises(PolicyError, match=r"observation\.image \(3, 64, 64\) is missing.*corner2"):
        ours.act(batch_of([(key, [two])], 0, Generators()))


def test_a_state_of_another_size_is_named_with_both_sizes():
    ours = wrapped(act_policy())
    key, (observation,) = episode(0, steps=1)
    short = {**observation, "state": observation["state"][:3]}
    with pytest.raises(PolicyError, match=r"state has shape \(3,\) instead of \(4,\)"):
        ours.act(batch_of([(key, [short])], 0, Generators()))


def test_other_failures_of_the_policy_stay_what_they_are(monkeypatch):
    policy = act_policy()

    def fails(inputs):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(policy, "predict_action_chunk", fails)
    with pytest.raises(RuntimeError, match=r"^no kernel$"):
        wrapped(policy).act(batch_of([episode(0, 1)], 0, Generators()))


def test_what_is_no_chunk_is_refused(monkeypatch):
    policy = tiny_vla()
    monkeypatch.setattr(policy, "predict_action_chunk", lambda inputs: torch.zeros(4, 1, 4))
    with pytest.raises(PolicyError, match=r"got 1 rows and returned shape \(4, 1, 4\)"):
        LeRobotPolicy(policy).act(batch_of([episode(0, 1)], 0, Generators()))


@pytest.mark.parametrize("suite", ["metaworld", "gym"])
@pytest.mark.parametrize("cameras", [("corner2",), ("corner", "corner2")])
def test_cameras_have_the_keys_that_lerobot_gives_their_frames(suite, cameras):
    frames = {f"pixels/{camera}": np.zeros((1, 8, 8, 3), np.uint8) for camera in cameras}
    shown = preprocess_observation(to_lerobot({"state": np.zeros((1, 4)), **frames}, suite))
    assert [key for key in shown if "image" in key] == image_keys(cameras, suite)


def test_cameras_are_compared_before_anything_runs():
    ours = LeRobotPolicy(act_policy())
    ours.check_spec(METAWORLD)
    with pytest.raises(PolicyError, match="has no cameras on"):
        ours.check_spec(EnvSpec("metaworld", "reach-v3"))
    two = EnvSpec("metaworld", "reach-v3", cameras=("corner", "corner2"))
    with pytest.raises(PolicyError, match=r"observation\.image,.*images\.corner2.*rename map"):
        ours.check_spec(two)
    LeRobotPolicy(tiny_vla()).check_spec(EnvSpec("metaworld", "reach-v3"))  # it does not look


def test_frames_of_another_size_are_warned_of_once(caplog):
    ours = LeRobotPolicy(act_policy())
    ours.check_spec(METAWORLD)
    assert not caplog.messages
    for task in ("reach-v3", "push-v3"):
        ours.check_spec(EnvSpec("metaworld", task, ("corner2",), image_size=(256, 256)))
    (message,) = caplog.messages
    assert "trained on frames of 64x64, the env delivers 256x256" in message
    assert "--image-size 64 64" in message


@pytest.mark.parametrize(
    "options",
    [{"orientation": "rotated", "robot_state": True}, {"orientation": "raw", "robot_state": False}],
)
def test_libero_must_be_shown_as_lerobot_shows_it(options):
    ours = LeRobotPolicy(tiny_vla())
    with pytest.raises(PolicyError, match="--protocol lerobot"):
        ours.check_spec(EnvSpec("libero", "libero_10/0", options=options))
    ours.check_spec(
        EnvSpec("libero", "libero_10/0", options={"orientation": "raw", "robot_state": True})
    )


def test_x_vla_needs_a_libero_that_takes_poses(monkeypatch):
    ours = LeRobotPolicy(tiny_vla())
    monkeypatch.setattr(type(ours.config), "type", "xvla")
    options = {"orientation": "raw", "robot_state": True, "control": "relative"}
    with pytest.raises(PolicyError, match="--suite-options control=absolute"):
        ours.check_spec(EnvSpec("libero", "libero_10/0", options=options))
    absolute = {**options, "control": "absolute"}
    ours.check_spec(EnvSpec("libero", "libero_10/0", options=absolute))


def test_what_is_no_policy_of_lerobots_is_refused():
    with pytest.raises(PolicyError, match=r"Linear is no PreTrainedPolicy"):
        LeRobotPolicy(torch.nn.Linear(2, 2))


class Pushing(gymnasium.Env):
    """Shows what LeRobot's own Gymnasium envs show: PushT one image, ALOHA images by name."""

    def __init__(self, pixels):
        self.observation_space = spaces.Dict(
            {"pixels": pixels, "agent_pos": spaces.Box(-1, 1, (4,), np.float64)}
        )
        self.action_space = spaces.Box(-10, 10, (4,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), 0.0, False, self.steps == 5, {"is_success": True}


PIXELS = spaces.Box(0, 255, (64, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("key", "pixels"),
    [("observation.image", PIXELS), ("observation.images.top", spaces.Dict({"top": PIXELS}))],
)
def test_gymnasium_envs_show_frames_of_their_own(key, pixels, caplog):
    policy = LeRobotPolicy(act_policy(input_features={"observation.state": STATE, key: IMAGE}))
    results = polyarm.evaluate(
        policy, lambda: Pushing(pixels), episodes=2, num_envs=2, num_workers=0
    )
    assert [(each.outcome, each.steps) for each in results.episodes] == [("success", 5)] * 2
    assert not caplog.messages


def test_frames_of_a_gymnasium_env_that_the_policy_does_not_know_are_named():
    env = Pushing(spaces.Dict({"top": PIXELS}))
    with pytest.raises(PolicyError, match=r"image \(3, 64, 64\) is missing; .*images\.top"):
        polyarm.evaluate(LeRobotPolicy(act_policy()), lambda: env, episodes=1, num_workers=0)


def test_envs_without_names_show_their_state(make_batch):
    ours = LeRobotPolicy(tiny_vla())
    keys = [EpisodeKey("gym", "Pendulum", index) for index in range(2)]
    assert ours.act(make_batch(keys, np.zeros((2, 4), np.float32))).shape == (2, 2, 4)


def test_rows_of_several_suites_are_refused(make_batch):
    keys = [EpisodeKey("gym", "a", 0), EpisodeKey("metaworld", "a", 0)]
    with pytest.raises(PolicyError, match=r"rows of several suites: \['gym', 'metaworld'\]"):
        LeRobotPolicy(tiny_vla()).act(make_batch(keys))


def test_policies_that_keep_state_for_a_whole_batch_are_refused(monkeypatch):
    policy = tiny_vla()
    monkeypatch.setattr(type(policy.config), "type", "tdmpc")
    with pytest.raises(PolicyError, match="'tdmpc' cannot run here: it plans on"):
        LeRobotPolicy(policy)


@pytest.mark.parametrize("make", [tiny_vla, diffusion_policy, lambda: act_policy(**ENSEMBLE)])
def test_the_conformance_kit_finds_nothing(make):
    seen = {
        "state": spaces.Box(-1, 1, (39,)),
        "pixels/corner2": spaces.Box(0, 255, (64, 64, 3), np.uint8),
    }
    keys = [EpisodeKey("metaworld", "reach-v3", index) for index in range(2)]
    check_policy(LeRobotPolicy(make()), spaces.Box(-1, 1, (4,)), spaces.Dict(seen), keys=keys)

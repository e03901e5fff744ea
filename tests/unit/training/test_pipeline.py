"""The training loop checks the whole way from envs to gradients."""

import contextlib
import os
import signal
import sys

import gymnasium
import numpy as np
import pytest

from polyarm.errors import InvalidCall, MissingExtra, UnknownName
from polyarm.training import pipeline
from polyarm.training.options import TrainOptions
from polyarm.training.pipeline import train
from polyarm.training.policy import GaussianPolicy

torch = pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")

BOX = gymnasium.spaces.Box(-2, 2, (3,), np.float32)


def pendulum(**options):
    return TrainOptions(
        **{
            "task": "gym/Pendulum-v1",
            "num_envs": 3,
            "num_workers": 0,
            "train_updates": 4,
            "train_hidden": 16,
            "action_chunk": 5,
            **options,
        }
    )


def policy(**options):
    given = {"state_size": 2, "actions": BOX, "hidden": 16, "seed": 0, "device": "cpu"}
    return GaussianPolicy(**{**given, "poses": False, **options})


def figures(training):
    return [(update.loss, update.grad_norm, update.reward) for update in training.updates]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_update_has_a_gradient_and_is_told(num_workers):
    seen = []
    training = train(pendulum(num_workers=num_workers), seen.append)
    assert tuple(seen) == training.updates
    assert [update.number for update in seen] == [1, 2, 3, 4]
    assert [update.steps for update in seen] == [15, 30, 45, 60]
    assert all(np.isfinite(update.loss) and update.grad_norm > 0 for update in seen)
    assert all(update.reward < 0 < update.steps_per_s for update in seen)
    assert (training.device, training.interrupted) == ("cpu", False)


def test_a_seed_gives_the_same_training_again():
    first, again = (figures(train(pendulum(seed=3))) for _ in range(2))
    assert first == again
    assert first != figures(train(pendulum(seed=4)))


def test_training_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(pendulum(train_updates=1))
    assert torch.equal(torch.rand(3), expected)


def test_a_state_among_other_keys_is_what_the_policy_sees():
    training = train(pendulum(task="toy/count-3,toy/count-10", action_chunk=4))
    # Episodes of 3 steps end within a chunk, and their resets are no steps.
    assert training.updates[-1].steps < 4 * 3 * 4
    assert training.updates[0].reward > 0


def test_an_interrupt_ends_with_what_was_done():
    def interrupt_at_two(update):
        if update.number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    training = train(pendulum(train_updates=10**6), interrupt_at_two)
    assert training.interrupted
    assert len(training.updates) == 2


def test_the_gradient_points_towards_reward():
    """A bandit whose best action is in the middle of the upper half."""
    actor = policy()
    optimizer = torch.optim.Adam(actor.parameters(), lr=0.03)
    state = np.ones((16, 2), np.float32)
    distances = []
    for _ in range(120):
        distribution = actor.distribution(state)
        sampled = actor.sample(distribution, 4)
        rewards = -np.abs(actor.actions(sampled) - 1.0).sum(-1)
        distances.append(-rewards.mean())
        weights = ((rewards - rewards.mean()) / rewards.std()).astype(np.float32)
        optimizer.zero_grad()
        actor.loss(distribution, sampled, weights).backward()
        optimizer.step()
    assert np.mean(distances[-10:]) < 0.6 * np.mean(distances[:10])


def test_actions_are_within_their_bounds_where_there_are_any():
    low = np.array([-2, -np.inf, 0], np.float32)
    box = gymnasium.spaces.Box(low, np.array([2, np.inf, 1], np.float32))
    sampled = torch.tensor([[[100.0, 100.0, -100.0], [0.0, 0.0, 0.0]]])
    actions = policy(actions=box).actions(sampled)
    assert actions.dtype == np.float32
    assert actions.tolist() == [[[2, 100, 0], [0, 0, 0.5]]]


def test_displacements_of_a_hand_do_not_turn_it():
    box = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    actor = policy(actions=box, poses=True)
    actions = actor.actions(actor.sample(actor.distribution(np.ones((2, 2), np.float32)), 3))
    assert np.array_equal(actions[..., 3:7], np.broadcast_to([0, 0, 0, 1], (2, 3, 4)))
    assert np.abs(actions[..., :3]).min() > 0


@pytest.fixture
def made(monkeypatch):
    """What `train` would make, without making it: its settings, and whether it expects poses."""
    seen = {}

    @contextlib.contextmanager
    def make_vec(tasks, **settings):
        seen.update(settings)
        yield None

    class Loop:
        def __init__(self, envs, options, *, poses):
            seen["poses"] = poses
            raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "make_vec", make_vec)
    monkeypatch.setattr(pipeline, "_Loop", Loop)

    def make(**options):
        seen.clear()
        with pytest.raises(KeyboardInterrupt):
            train(TrainOptions(task="rlbench/open_drawer", **options))
        return seen.get("control"), seen["poses"]

    return make


def test_only_poses_keep_their_turn(made):
    """Joints 4 to 7 are no quaternion, displaced or not."""
    assert made() == made(arm_mode="planning") == ("delta", True)
    assert made(suite_options=("control=delta",)) == ("delta", True)
    assert made(arm_mode="joint_velocity") == (None, False)
    assert made(arm_mode="joint_position") == (None, False)
    displaced = made(arm_mode="joint_position", suite_options=("control=delta",))
    assert displaced == ("delta", False)


@pytest.mark.usefixtures("failing")
def test_episodes_that_fail_are_counted_and_the_others_go_on():
    """The first of three envs to step fails, once."""
    training = train(pendulum(task="failing:once", train_updates=3))
    assert [update.errors for update in training.updates] == [1, 1, 1]
    assert training.updates[0].steps == 10
    assert (training.errors, training.steps) == (1, training.updates[-1].steps)
    assert "as it was asked to" in training.last_error


@pytest.mark.usefixtures("failing")
def test_steps_that_all_fail_are_no_steps():
    training = train(pendulum(task="failing:always", train_updates=1))
    assert (training.steps, training.errors) == (0, 3)
    assert np.isfinite(training.updates[0].loss)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"task": "gym/CartPole-v1"}, "needs a Box of real numbers as actions, found Discrete"),
        ({"task": " "}, "no task was given"),
        ({"train_updates": 0}, "train_updates must be at least 1"),
        ({"action_chunk": 0}, "action_chunk must be at least 1"),
        ({"train_lr": float("nan")}, "train_lr must be above 0"),
        ({"suite_options": ("num_envs=3",)}, "'num_envs' is an option of the command"),
    ],
)
def test_what_cannot_be_trained_is_refused(options, complaint):
    with pytest.raises(InvalidCall, match=complaint):
        train(pendulum(**options))


def test_an_option_that_a_suite_lacks_is_refused_in_python_too():
    with pytest.raises(UnknownName, match="unknown option of gym 'arm_mode'"):
        train(pendulum(arm_mode="ik"))


def test_without_pytorch_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"pip install 'polyarm\[torch\]'"):
        train(pendulum())

"""The client against the real server of vla-eval: a connection per episode, clear ends."""

from __future__ import annotations

import threading
import time
from collections import Counter

import numpy as np
import pytest
from gymnasium.spaces import Box
from openpi_double import OpenPIServer
from vla_eval_server import Serving, TinyModel

from polyarm.contracts import EpisodeKey
from polyarm.errors import PolicyError, UnknownName
from polyarm.policies import load_policy
from polyarm.policies.connections import Patience
from polyarm.policies.loading import expand_policies, identity, source_digest
from polyarm.policies.vla_eval import VlaEvalPolicy
from polyarm.policies.websocket import OpenPIPolicy
from polyarm.testing import check_policy

QUICK = Patience(start_s=5.0, open_s=20.0, reply_s=30.0)
WITH_STATE = {"send_state": True}


def doubled(obs, _):
    return 2 * obs["state"]


def counted(obs, ctx):
    """A chunk of three: the state, and how often the session's model was asked."""
    return np.stack([np.append(obs["state"][:1], [ctx.step, step]) for step in range(3)])


def states(count, start=0):
    return {"state": np.arange(start, start + 4 * count, dtype=np.float32).reshape(count, 4)}


def asked(policy, batch):
    policy.begin(batch.keys)
    return policy.act(batch)


@pytest.fixture
def served():
    """Serve models; gives the server and a policy that asks it."""
    open_ones = []

    def serve(function=doubled, params=WITH_STATE, patience=QUICK, **options):
        server = Serving(TinyModel(function, params=params, **options)).__enter__()
        policy = VlaEvalPolicy([server.address], patience=patience)
        open_ones.extend((server, policy))
        return server.model, policy

    yield serve
    for each in reversed(open_ones):
        each.__exit__()


def test_every_row_is_answered_on_a_connection_of_its_own(make_batch, served):
    model, policy = served()
    obs = states(5)
    for _ in range(2):
        actions = asked(policy, make_batch(range(5), obs))
        assert actions.shape == (5, 1, 4)
        np.testing.assert_array_equal(actions[:, 0], 2 * obs["state"])
    assert len(model.sessions) == 5
    _, _, sent = model.asked[0]
    assert set(sent) == {"images", "task_description", "state"}
    assert sent["task_description"] == "do count"
    assert model.events[0][2] == {"name": "count", "suite": "toy", "episode_idx": 0}


def test_a_server_is_told_when_an_episode_begins_and_ends(make_batch, served):
    model, policy = served()
    for index in range(3):
        batch = make_batch([index, index + 100], states(2))
        asked(policy, batch)
        policy.act(batch)
        policy.end(batch.keys)
    asked(policy, make_batch([7], states(1)))
    policy.close()
    # Nobody answers to an end: the server may read the last ones after the policy has gone.
    deadline = time.monotonic() + 20
    while sum(event[0] == "end" for event in model.events) < 6 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(model.sessions) == 2  # connections of episodes that are over serve others
    for session in model.sessions:
        own = [event[0] for event in model.events if event[1] == session]
        assert own[:6] == ["start", "end"] * 3
        steps = [step for asking, step, _ in model.asked if asking == session]
        assert steps[:6] == [0, 1] * 3
    assert Counter(event[0] for event in model.events)["start"] == 7


def test_the_rest_of_a_chunk_stays_with_its_episode(make_batch, served):
    """vla-eval's servers keep it by connection, and answer with one action at a time."""
    _, policy = served(counted, chunk_size=3)
    batch = make_batch(range(3), states(3))
    policy.begin(batch.keys)
    for step in range(7):
        # Which rows are asked about together, and in which order, changes nothing.
        rows = [2, 0] if step % 2 else [0, 1, 2]
        part = make_batch([batch.keys[row] for row in rows], {"state": batch.obs["state"][rows]})
        actions = policy.act(part)
        assert actions.shape == (len(rows), 1, 3)
        np.testing.assert_array_equal(actions[:, 0, 0], part.obs["state"][:, 0])
        np.testing.assert_array_equal(actions[:, 0, 2][np.array(rows) != 1], step % 3)
    policy.begin(batch.keys[:1])  # again from its beginning: what was left is forgotten
    again = policy.act(make_batch(batch.keys[:1], {"state": batch.obs["state"][:1]}))
    assert again[0, 0].tolist() == [0, 0, 0]


def test_whole_chunks_are_taken_from_servers_that_send_them(make_batch, served):
    _, policy = served(counted, chunk_size=None)
    actions = asked(policy, make_batch(range(2), states(2)))
    assert actions.shape == (2, 3, 3)
    np.testing.assert_array_equal(actions[:, :, 2], [[0, 1, 2]] * 2)


def test_all_requests_of_a_batch_are_under_way_at_once(make_batch, served):
    """The server answers when all have come, in one batch."""
    sizes = []

    class Batching(TinyModel):
        def predict_batch(self, observations, contexts):
            sizes.append(len(observations))
            return [self.predict(*each) for each in zip(observations, contexts, strict=True)]

    model = Batching(doubled, params=WITH_STATE, max_batch_size=4, max_wait_time=5.0)
    with (
        Serving(model) as server,
        VlaEvalPolicy([server.address], patience=QUICK) as policy,
    ):
        batch = make_batch(range(5), states(5))
        np.testing.assert_array_equal(asked(policy, batch)[:, 0], 2 * batch.obs["state"])
    assert sum(sizes) == 5
    assert max(sizes) == 4


def test_episodes_are_shared_among_servers_and_stay_where_they_are(make_batch):
    def named(number):
        return TinyModel(lambda obs, ctx: np.full(4, number, np.float32))

    with (
        Serving(named(0)) as first,
        Serving(named(1)) as second,
        load_policy(f"vla-eval:{first.address},{second.address}", None) as policy,
    ):
        batch = make_batch(range(6), states(6))
        before = asked(policy, batch)[:, 0, 0]
        assert sorted(before) == [0, 0, 0, 1, 1, 1]
        for _ in range(3):
            np.testing.assert_array_equal(policy.act(batch)[:, 0, 0], before)
    assert len(first.model.sessions) == len(second.model.sessions) == 3


def test_servers_of_different_models_are_refused():
    class Another(TinyModel):
        pass

    with (
        Serving(TinyModel(doubled)) as first,
        Serving(Another(doubled)) as second,
        VlaEvalPolicy([first.address, second.address]) as policy,
    ):
        for _ in range(2):  # asking again does not help
            with pytest.raises(PolicyError, match="serve different policies"):
                policy.connect()


def test_its_fingerprint_says_that_noise_is_remote_and_what_the_server_says(served):
    _, policy = served(params={"send_wrist_image": True})
    about = policy.fingerprint
    assert (about["policy"], about["noise"], about["server"]) == ("vla-eval", "remote", "TinyModel")
    assert about["protocol_version"] == 1
    assert about["params"] == {"send_wrist_image": True}
    assert not policy.row_independent
    _, other = served(params={"send_wrist_image": True}, chunk_size=None, action_spec={"a": "raw"})
    assert other.fingerprint["metadata"] != about["metadata"]


def test_it_keeps_the_contract_of_policies(make_batch, served):
    _, policy = served(lambda obs, ctx: np.zeros(4, np.float32))
    check_policy(policy, Box(-1, 1, (4,), np.float32))


def test_its_name_holds_no_path_and_its_address_is_no_identity():
    name = "vla-eval:ws://a:8000,ws://b:8001@send_state=true"
    assert identity(name) == "vla-eval"
    assert source_digest(name) == ""
    assert expand_policies(name) == [(name, name)]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("", PolicyError, "needs an address: vla-eval:ws://host:port"),
        ("http://host:1", PolicyError, "no address"),
        ("ws://h:1@send_stat=true", UnknownName, "did you mean 'send_state'"),
        ("ws://h:1@send_state", PolicyError, "send_state=true or send_state=false"),
        ("ws://h:1@send_state=1", PolicyError, "not '1'"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name, error, message):
    with pytest.raises(error, match=message):
        load_policy(f"vla-eval:{name}", None)


def test_a_closest_name_is_shown():
    with pytest.raises(UnknownName, match="vla-eval:ws"):
        load_policy("vla-eval", None)


# Servers that fail.


def failing(after, error):
    """A model that goes wrong at a request."""
    seen = []

    def predict(obs, _):
        seen.append(obs)
        if len(seen) == after + 1:
            raise error
        return 2 * obs["state"]

    return predict


def test_the_servers_error_is_told_and_its_connection_not_used_again(make_batch, served):
    model, policy = served(failing(1, FloatingPointError("the model is tired")))
    batch = make_batch([7], states(1))
    asked(policy, batch)
    with pytest.raises(PolicyError, match="FloatingPointError: the model is tired") as caught:
        policy.act(batch)
    assert caught.value.row == 0
    with pytest.raises(PolicyError, match="what the server remembers of it is lost"):
        policy.act(batch)
    assert asked(policy, batch).shape == (1, 1, 4)
    assert len(model.sessions) == 2


def test_an_episode_that_the_server_cannot_begin_is_an_error(make_batch, served):
    """Its answer to the observation that follows must not be taken for that of another one."""

    class Stubborn(TinyModel):
        async def on_episode_start(self, config, ctx):
            if config["task"]["episode_idx"] == 1:
                raise KeyError("no such level")
            await super().on_episode_start(config, ctx)

    with (
        Serving(Stubborn(doubled, params=WITH_STATE)) as server,
        VlaEvalPolicy([server.address], patience=QUICK) as policy,
    ):
        with pytest.raises(PolicyError, match="episode_start_failed: KeyError: 'no such level'"):
            asked(policy, make_batch([1], states(1)))
        batch = make_batch([2], states(1, 40))
        np.testing.assert_array_equal(asked(policy, batch)[0], 2 * batch.obs["state"])


def test_no_episode_of_a_decision_that_failed_goes_on(make_batch, served):
    """Those servers that were asked are a step ahead of their envs."""

    def whole(obs, ctx):
        return np.zeros((2 if ctx.step == 1 and obs["state"][0] else 1, 4), np.float32)

    _, policy = served(whole)
    batch = make_batch(range(2), states(2))
    asked(policy, batch)
    with pytest.raises(PolicyError, match="to another row of the batch"):
        policy.act(batch)
    for key in batch.keys:
        with pytest.raises(PolicyError, match="what the server remembers of it is lost"):
            policy.act(make_batch([key], states(1)))
    assert asked(policy, batch).shape == (2, 1, 4)
    # The second row of this one lacks what LIBERO's servers want: nothing comes of the first.
    mixed = make_batch([batch.keys[0], EpisodeKey("libero", "libero_goal/0", 0)], states(2))
    with pytest.raises(PolicyError, match="wants 'pixels/agentview'"):
        policy.act(mixed)
    with pytest.raises(PolicyError, match="what the server remembers of it is lost"):
        policy.act(make_batch([batch.keys[0]], states(1)))
    assert asked(policy, batch).shape == (2, 1, 4)


def test_a_server_that_answers_more_than_it_was_asked_is_refused(make_batch):
    class Chatty(TinyModel):
        async def on_observation(self, obs, ctx):
            await super().on_observation(obs, ctx)
            await ctx.send_action({"actions": np.ones(4, np.float32)})

    with (
        Serving(Chatty(doubled, params=WITH_STATE)) as server,
        VlaEvalPolicy([server.address], patience=QUICK) as policy,
    ):
        batch = make_batch([0], states(1))
        asked(policy, batch)
        with pytest.raises(PolicyError, match="it serves more than was asked"):
            policy.act(batch)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda obs, ctx: None, "without actions: actions"),
        (lambda obs, ctx: np.zeros((2, 2, 4)), r"neither one \(A,\) nor a chunk \(K, A\)"),
        (lambda obs, ctx: np.zeros(0), "neither one"),
        (
            lambda obs, ctx: np.zeros((int(obs["state"][0]) + 1, 4)),
            "to another row of the batch",
        ),
    ],
)
def test_an_answer_that_is_no_decision_is_refused(make_batch, served, function, message):
    _, policy = served(function)
    with pytest.raises(PolicyError, match=message):
        asked(policy, make_batch(range(2), states(2)))


def test_bytes_that_are_no_message_are_refused(make_batch, served, monkeypatch):
    _, policy = served()
    batch = make_batch([0], states(1))
    asked(policy, batch)
    monkeypatch.setattr("vla_eval.model_servers.serve.pack_message", lambda message: b"\xc1")
    with pytest.raises(PolicyError, match="bytes that are no message"):
        policy.act(batch)


def test_a_server_that_does_not_answer_is_given_up_in_time_and_its_answer_never_taken(
    make_batch, served
):
    going = threading.Event()

    def slow(obs, ctx):
        if ctx.step == 1 and not going.is_set():
            assert going.wait(20)
        return 2 * obs["state"]

    patience = Patience(start_s=1.0, open_s=10.0, reply_s=0.5)
    _, policy = served(slow, patience=patience)
    batch = make_batch([0], states(1))
    asked(policy, batch)
    with pytest.raises(PolicyError, match=r"has not answered within 0\.5 s"):
        policy.act(batch)
    going.set()
    later = make_batch([0], states(1, 40))
    np.testing.assert_array_equal(asked(policy, later)[0], 2 * later.obs["state"])


def test_a_server_that_has_closed_an_idle_connection_costs_nothing(make_batch):
    batch = make_batch([0], states(1))
    with Serving(TinyModel(doubled, params=WITH_STATE)) as server:
        policy = VlaEvalPolicy([server.address], patience=QUICK)
        asked(policy, batch)
        policy.end(batch.keys)
    with Serving(TinyModel(doubled, params=WITH_STATE), server.port), policy:
        np.testing.assert_array_equal(asked(policy, batch)[0], 2 * batch.obs["state"])


def test_an_episode_whose_connection_is_lost_does_not_go_on_over_another(make_batch):
    batch = make_batch([0], states(1))
    with Serving(TinyModel(doubled, params=WITH_STATE)) as server:
        policy = VlaEvalPolicy([server.address], patience=QUICK)
        asked(policy, batch)
    with Serving(TinyModel(doubled, params=WITH_STATE), server.port) as second, policy:
        with pytest.raises(PolicyError, match="broke in the middle of an episode"):
            policy.act(batch)
        assert not second.model.asked
        assert asked(policy, batch).shape == (1, 1, 4)


def test_a_server_that_comes_back_with_another_model_is_refused(make_batch):
    with Serving(TinyModel(doubled, params=WITH_STATE)) as server:
        policy = VlaEvalPolicy([server.address], patience=QUICK)
        asked(policy, make_batch([0], states(1)))
    with (
        Serving(TinyModel(doubled, params={**WITH_STATE, "seed": 0}), server.port),
        policy,
        pytest.raises(PolicyError, match="serves another policy than it did before"),
    ):
        asked(policy, make_batch([1], states(1)))


def test_another_version_of_the_protocol_is_refused(monkeypatch, served):
    monkeypatch.setattr("vla_eval.protocol.messages.PROTOCOL_VERSION", 2)
    _, policy = served()
    with pytest.raises(PolicyError, match="speaks version 2 of vla-eval's protocol, and we"):
        policy.connect()


def test_a_server_of_openpis_kind_is_told_apart():
    with (
        OpenPIServer(lambda obs: {"actions": np.zeros((1, 4))}) as server,
        VlaEvalPolicy([server.address]) as policy,
        pytest.raises(PolicyError, match=rf"--policy openpi:{server.address}"),
    ):
        policy.connect()


def test_openpis_policy_tells_a_server_of_vla_evals_kind():
    with (
        Serving(TinyModel(doubled)) as server,
        OpenPIPolicy([server.address], patience=Patience(open_s=0.5)) as policy,
        pytest.raises(PolicyError, match=rf"greeted us .*--policy vla-eval:{server.address}$"),
    ):
        policy.connect()


def test_ending_an_episode_that_never_began_does_nothing():
    with VlaEvalPolicy(["ws://127.0.0.1:1"]) as policy:
        policy.end([EpisodeKey("toy", "count", 0)])

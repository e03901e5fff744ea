"""The client against a server like openpi's: one connection per episode, clear ends."""

from __future__ import annotations

import gc
import socket
import threading
import time

import numpy as np
import pytest
from openpi_double import Close, Garbage, Hang, OpenPIServer

from polyarm.contracts import EnvSpec, EpisodeKey
from polyarm.errors import PolicyError
from polyarm.policies import load_policy
from polyarm.policies.connections import Patience
from polyarm.policies.websocket import OpenPIPolicy

QUICK = Patience(start_s=5.0, open_s=20.0, reply_s=30.0)


def double_state(obs):
    return {"actions": np.tile(2 * np.asarray(obs["state"]), (3, 1))}


def states(count):
    return {"state": np.arange(4 * count, dtype=np.float32).reshape(count, 4)}


def asked(policy, batch):
    policy.begin(batch.keys)
    return policy.act(batch)


def failing(after, error):
    """A policy that goes wrong at a request."""
    seen = []

    def infer(obs):
        seen.append(obs)
        if len(seen) == after + 1:
            raise error
        return double_state(obs)

    return infer


def test_every_row_is_answered_on_a_connection_of_its_own(make_batch):
    with (
        OpenPIServer(double_state, metadata={"robot": "panda"}) as server,
        OpenPIPolicy([server.address], "plain") as policy,
    ):
        obs = states(5)
        for _ in range(2):
            actions = asked(policy, make_batch(range(5), obs))
            assert actions.shape == (5, 3, 4)
            np.testing.assert_array_equal(actions[:, 0], 2 * obs["state"])
        assert server.connections == 5
        # What openpi's policies would take for observations is not sent.
        assert set(server.requests[0]) == {"state", "prompt"}
        assert server.requests[0]["prompt"] == "do count"


def test_connections_of_episodes_that_are_over_serve_others(make_batch):
    with (
        OpenPIServer(double_state) as server,
        OpenPIPolicy([server.address], "plain") as policy,
    ):
        for index in range(6):
            batch = make_batch([index, index + 100], states(2))
            asked(policy, batch)
            policy.end(batch.keys)
        assert server.connections == 2


def test_episodes_are_shared_among_servers_and_stay_where_they_are(make_batch):
    def named(number):
        return lambda obs: {"actions": np.full((1, 4), number, np.float32)}

    with (
        OpenPIServer(named(0)) as first,
        OpenPIServer(named(1)) as second,
        OpenPIPolicy([first.address, second.address], "plain") as policy,
    ):
        batch = make_batch(range(6), states(6))
        before = asked(policy, batch)[:, 0, 0]
        assert sorted(before) == [0, 0, 0, 1, 1, 1]
        for _ in range(3):
            np.testing.assert_array_equal(policy.act(batch)[:, 0, 0], before)
        policy.end([key for key, where in zip(batch.keys, before, strict=True) if where == 0])
        again = make_batch(range(100, 103), states(3))
        np.testing.assert_array_equal(asked(policy, again)[:, 0, 0], [0, 0, 0])


def test_servers_of_different_policies_are_refused():
    with (
        OpenPIServer(double_state, metadata={"model": np.arange(3)}) as first,
        OpenPIServer(double_state, metadata={"model": np.arange(4)}) as second,
        OpenPIPolicy([first.address, second.address]) as policy,
    ):
        for _ in range(2):  # asking again does not help
            with pytest.raises(PolicyError, match="serve different policies"):
                policy.connect()


def test_its_fingerprint_says_that_noise_is_remote_and_what_is_sent():
    with (
        OpenPIServer(double_state) as server,
        load_policy(f"openpi:{server.address}", None) as policy,
        load_policy(f"openpi:{server.address}@plain", None) as other,
    ):
        about = policy.fingerprint
        assert (about["noise"], about["addresses"]) == ("remote", [server.address])
        assert policy.execute == 5  # openpi's LIBERO example replans so often
        assert other.execute is None
        assert other.fingerprint["mapping"] != about["mapping"]
        assert policy.needs_frames
        assert not policy.row_independent


def test_the_servers_traceback_is_told(make_batch):
    infer = failing(1, FloatingPointError("the model is tired"))
    with (
        OpenPIServer(infer) as server,
        OpenPIPolicy([server.address], "plain") as policy,
    ):
        batch = make_batch([7], states(1))
        asked(policy, batch)
        with pytest.raises(PolicyError, match=r"answered with an error:\nTraceback") as caught:
            policy.act(batch)
        assert "FloatingPointError: the model is tired" in str(caught.value)
        assert caught.value.row == 0
        assert asked(policy, batch).shape == (1, 3, 4)  # another attempt gets another connection


def test_a_request_is_sent_again_when_the_connection_breaks(make_batch, caplog):
    with (
        OpenPIServer(failing(1, Close())) as server,
        OpenPIPolicy([server.address], "plain", patience=QUICK) as policy,
    ):
        batch = make_batch([0], states(1))
        asked(policy, batch)
        np.testing.assert_array_equal(policy.act(batch)[0, 0], 2 * batch.obs["state"][0])
        assert (len(server.requests), server.connections) == (3, 2)
    assert "the connection broke" in caplog.text


def test_a_server_that_closes_every_time_is_given_up(make_batch):
    def infer(obs):
        raise Close

    with (
        OpenPIServer(infer) as server,
        OpenPIPolicy([server.address], "plain", patience=QUICK) as policy,
        pytest.raises(PolicyError, match="broke 3 times in one request"),
    ):
        asked(policy, make_batch([0], states(1)))


@pytest.mark.parametrize(
    ("infer", "message"),
    [
        (failing(0, Garbage()), "bytes that are no message"),
        (lambda obs: {"action": 1}, "without actions: action, server_timing"),
        (lambda obs: {"actions": 1.0}, "no chunk"),
        (lambda obs: {"actions": np.zeros((0, 7))}, "no chunk"),
        (
            lambda obs: {"actions": np.zeros((int(obs["state"][0]) + 1, 4))},
            "to another row of the batch",
        ),
    ],
)
def test_an_answer_that_is_no_decision_is_refused(make_batch, infer, message):
    with (
        OpenPIServer(infer) as server,
        OpenPIPolicy([server.address], "plain") as policy,
        pytest.raises(PolicyError, match=message),
    ):
        asked(policy, make_batch(range(2), states(2)))


def test_a_server_that_does_not_answer_is_given_up_in_time_and_its_answer_never_taken(make_batch):
    patience = Patience(start_s=1.0, open_s=10.0, reply_s=2.0)
    with (
        OpenPIServer(failing(1, Hang())) as server,
        OpenPIPolicy([server.address], "plain", patience=patience) as policy,
    ):
        batch = make_batch([0], states(1))
        asked(policy, batch)
        with pytest.raises(PolicyError, match=r"has not answered within 2 s"):
            policy.act(batch)


def test_a_key_is_sent_and_a_wrong_one_is_refused(monkeypatch, make_batch):
    with OpenPIServer(double_state, api_key="secret") as server:
        monkeypatch.setenv("POLYARM_API_KEY", "secret")
        with OpenPIPolicy([server.address], "plain") as policy:
            asked(policy, make_batch([0], states(1)))
        with (
            OpenPIPolicy([server.address], api_key="guess") as policy,
            pytest.raises(PolicyError, match="refuses the API key we sent"),
        ):
            policy.connect()
        monkeypatch.delenv("POLYARM_API_KEY")
        with (
            OpenPIPolicy([server.address]) as policy,
            pytest.raises(PolicyError, match=r"without an API key: set POLYARM_API_KEY"),
        ):
            policy.connect()


def test_it_waits_for_a_server_that_comes_later_and_says_so(make_batch, caplog, monkeypatch):
    monkeypatch.setattr("polyarm.policies.connections._TELL_EVERY_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with OpenPIPolicy([f"ws://127.0.0.1:{port}"], "plain") as policy:
        waiting = threading.Thread(target=policy.connect)
        waiting.start()
        deadline = time.monotonic() + 20
        while "waiting for" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with OpenPIServer(double_state, port=port):
            waiting.join(20)
            asked(policy, make_batch([0], states(1)))


def test_a_server_without_healthz_will_do(make_batch):
    with (
        OpenPIServer(double_state, health=False) as server,
        OpenPIPolicy([server.address], "plain") as policy,
    ):
        asked(policy, make_batch([0], states(1)))


def test_where_nobody_answers_the_wait_has_an_end():
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    patience = Patience(start_s=0.3)
    with (
        OpenPIPolicy([f"ws://127.0.0.1:{port}"], patience=patience) as policy,
        pytest.raises(PolicyError, match=rf"no policy server at ws://127\.0\.0\.1:{port} after"),
    ):
        policy.connect()


def test_something_else_that_answers_is_no_policy_server():
    with (
        OpenPIServer(double_state, metadata=b"\xc1") as server,
        OpenPIPolicy([server.address]) as policy,
        pytest.raises(PolicyError, match="is no policy server: it sent"),
    ):
        policy.connect()
    with socket.create_server(("127.0.0.1", 0)) as mute:  # accepts, and says nothing
        address = f"ws://127.0.0.1:{mute.getsockname()[1]}"
        patience = Patience(start_s=0.2, open_s=0.2)
        with (
            OpenPIPolicy([address], patience=patience) as policy,
            pytest.raises(PolicyError, match="no policy server at"),
        ):
            policy.connect()


@pytest.mark.parametrize(
    "name", ["", "http://host:1", "ws://", "host:8000", "ws://host:port", "ws://h:1,nonsense"]
)
def test_an_address_that_is_none_is_refused(name):
    with pytest.raises(PolicyError, match="address"):
        load_policy(f"openpi:{name}", None)


def test_connections_close_when_nobody_holds_the_policy_any_more(make_batch):
    with OpenPIServer(double_state) as server:
        policy = OpenPIPolicy([server.address], "plain")
        asked(policy, make_batch([0], states(1)))
        assert [t for t in threading.enumerate() if t.name == "polyarm-wire"]
        del policy
        gc.collect()
        assert not [t for t in threading.enumerate() if t.name == "polyarm-wire"]


def test_ending_an_episode_that_never_began_does_nothing():
    with OpenPIPolicy(["ws://127.0.0.1:1"]) as policy:
        policy.end([EpisodeKey("toy", "count", 0)])


def test_a_server_that_comes_back_with_another_policy_is_refused(make_batch):
    about = {"fingerprint": "one", "mapping": {}}
    with OpenPIServer(double_state, metadata={"polyarm": about}) as server:
        policy = OpenPIPolicy([server.address], patience=QUICK)
        asked(policy, make_batch([0], states(1)))
    about["fingerprint"] = "two"
    with (
        OpenPIServer(double_state, metadata={"polyarm": about}, port=server.port),
        policy,
        pytest.raises(PolicyError, match="serves another policy than it did before"),
    ):
        asked(policy, make_batch([1], states(1)))


@pytest.mark.parametrize(
    ("mapping", "orientation", "refused"),
    [
        ("libero", "rot180", False),
        ("libero", "raw", True),
        ("libero-raw", "raw", False),
        ("libero-raw", "rot180", True),
        ("plain", "raw", False),
        ("libero", None, False),
    ],
)
def test_frames_that_are_turned_otherwise_are_refused(mapping, orientation, refused):
    options = {} if orientation is None else {"orientation": orientation}
    spec = EnvSpec("libero", "libero_goal/0", options=options)
    with OpenPIPolicy(["ws://127.0.0.1:9"], mapping) as policy:
        if not refused:
            policy.check_spec(spec)
            return
        with pytest.raises(PolicyError, match=f"orientation={orientation}.*add @libero"):
            policy.check_spec(spec)

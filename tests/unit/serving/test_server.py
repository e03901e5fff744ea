"""The server with the real client of openpi, with ours, and with clients that misbehave."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import websockets.sync.client
from gymnasium import spaces
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from websockets.exceptions import ConnectionClosed, InvalidStatus

from polyarm.contracts import PolicyOutput
from polyarm.errors import InvalidCall, StorageError
from polyarm.policies import ExpertPolicy, RandomPolicy, wire
from polyarm.policies.websocket import OpenPIPolicy
from polyarm.serving.options import ServeOptions
from polyarm.serving.server import PolicyServer, is_loopback, serving
from polyarm.testing import check_policy
from polyarm.testing.policies import CountingPolicy, RaisingPolicy

BOX = spaces.Box(-1, 1, (4,), np.float32)
ANY = ServeOptions(port=0, mapping="plain", max_wait_ms=200)


class Doubling(CountingPolicy):
    """Twice the state, three times, and how many rows there were."""

    def __init__(self):
        super().__init__((4,))
        self.asked, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()
        self.instructions = []

    def act(self, batch):
        super().act(batch)
        self.instructions.append(batch.instructions)
        self.asked.set()
        assert self.may_go_on.wait(20)
        state = batch.obs["state"].astype(np.float32)
        return PolicyOutput(np.stack([2 * state] * 3, axis=1), {"rows": np.full(len(batch), 7)})


@pytest.fixture
def doubling():
    policy = Doubling()
    with serving(policy, BOX, ANY) as server:
        yield policy, server


@pytest.fixture
def connect():
    """The real client of openpi; its connections are closed in the end."""
    clients = []

    def connected(server, **options):
        clients.append(WebsocketClientPolicy(server.address, **options))
        return clients[-1]

    yield connected
    for client in clients:
        client._ws.close()


def until(predicate, what):
    deadline = time.monotonic() + 20
    while not predicate():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def get(server, path, **headers):
    request = urllib.request.Request(server.address.replace("ws", "http", 1) + path)
    for name, value in headers.items():
        request.add_header(name, value)
    with urllib.request.urlopen(request, timeout=20) as response:
        return response.status, response.read().decode()


def test_openpis_client_is_greeted_and_answered(doubling, connect):
    policy, server = doubling
    client = connect(server)
    assert client.get_server_metadata()["polyarm"]["row_independent"] is True
    state = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    reply = client.infer({"state": state, "prompt": "fold the towel"})
    np.testing.assert_array_equal(reply["actions"], [2 * state] * 3)
    assert reply["actions"].dtype == np.float32
    assert reply["server_timing"]["infer_ms"] > 0
    assert reply["extras"]["rows"] == 7
    assert "prev_total_ms" in client.infer({"state": state})["server_timing"]
    assert policy.instructions == [("fold the towel",), ("",)]


def test_openpis_client_is_served_with_liberos_observations(connect):
    class Looking(CountingPolicy):
        def act(self, batch):
            shapes = {name: value.shape[1:] for name, value in batch.obs.items()}
            assert shapes == {
                "pixels/agentview": (224, 224, 3),
                "pixels/robot0_eye_in_hand": (224, 224, 3),
                "state": (8,),
            }
            return super().act(batch)

    space = spaces.Box(-1, 1, (7,), np.float32)
    with serving(Looking((7,), 10), space, ServeOptions(port=0)) as server:
        frame = np.zeros((224, 224, 3), np.uint8)
        observation = {
            "observation/image": frame,
            "observation/wrist_image": frame,
            "observation/state": np.zeros(8),
            "prompt": "pick up the bowl",
        }
        client = connect(server)
        assert client.infer(observation)["actions"].shape == (10, 7)
        del observation["observation/state"]
        with pytest.raises(RuntimeError, match="lacks 'observation/state'; it has observation"):
            client.infer(observation)


def test_requests_of_many_clients_become_one_decision(doubling, connect):
    policy, server = doubling
    clients = [connect(server) for _ in range(8)]
    policy.may_go_on.clear()
    with ThreadPoolExecutor(8) as pool:
        state = np.arange(4, dtype=np.float32) / 10
        futures = [pool.submit(each.infer, {"state": state * i}) for i, each in enumerate(clients)]
        assert policy.asked.wait(20)
        waiting = 8 - policy.batch_sizes[0]
        until(lambda: f"polyarm_serve_queue {waiting}\n" in server.metrics, "all have asked")
        policy.may_go_on.set()
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(20)["actions"][0], 2 * state * i)
    assert policy.batch_sizes in ([8 - waiting, waiting], [8])
    text = server.metrics
    assert "polyarm_serve_requests_total 8" in text
    assert f"polyarm_serve_batches_total {len(policy.batch_sizes)}" in text
    assert "polyarm_serve_clients 8" in text


def test_a_batch_is_no_larger_than_asked_for_and_shapes_are_not_mixed(connect):
    policy = CountingPolicy((4,))
    options = ServeOptions(port=0, mapping="plain", max_batch=3, max_wait_ms=50)
    with serving(policy, BOX, options) as server, ThreadPoolExecutor(8) as pool:
        clients = [connect(server) for _ in range(8)]
        requests = [{"state": np.zeros(4 + i % 2)} for i in range(8)]
        for _ in range(3):
            replies = pool.map(WebsocketClientPolicy.infer, clients, requests)
            assert all(reply["actions"].shape == (1, 4) for reply in replies)
    assert sum(policy.batch_sizes) == 24
    assert max(policy.batch_sizes) <= 3


def test_a_connection_is_an_episode_and_reset_starts_another(doubling, connect):
    policy, server = doubling
    state = np.zeros(4, np.float32)
    first, second = connect(server), connect(server)
    for client in (first, second, first):
        client.infer({"state": state})
    assert len(policy.begun) == 2
    assert policy.keys[0] == policy.keys[2] != policy.keys[1]
    assert policy.steps == [(0,), (0,), (1,)]
    first.infer({"state": state, "reset": True})
    assert policy.ended == [policy.keys[0][0]]
    assert len(set(policy.begun)) == 3
    second._ws.close()
    until(lambda: policy.keys[1][0] in policy.ended, "its client has left")


def test_our_client_keeps_every_promise_of_a_policy_through_the_server():
    for policy in (RandomPolicy(BOX, 3), CountingPolicy((4,))):
        options = ServeOptions(port=0, mapping="plain", max_wait_ms=1)
        with serving(policy, BOX, options) as server, OpenPIPolicy([server.address]) as remote:
            check_policy(remote, BOX)
            assert remote.row_independent
            assert not remote.needs_frames
            assert "served" in remote.fingerprint


def test_two_clients_in_the_same_episode_are_kept_apart(make_batch):
    policy = RandomPolicy(BOX)
    begun = []
    policy.begin = begun.extend
    with (
        serving(policy, BOX, ANY) as server,
        OpenPIPolicy([server.address]) as one,
        OpenPIPolicy([server.address]) as other,
    ):
        batch = make_batch([3], {"state": np.zeros((1, 4))})
        for each in (one, other):
            each.begin(batch.keys)
        np.testing.assert_array_equal(one.act(batch), other.act(batch))  # the same noise
    assert len(set(begun)) == 2
    assert begun[0] == batch.keys[0]


def test_what_a_policy_raises_is_told_and_the_server_goes_on(connect):
    policy = RaisingPolicy(1, (4,))
    with serving(policy, BOX, ANY) as server:
        client, state = connect(server), {"state": np.zeros(4)}
        client.infer(state)
        with pytest.raises(RuntimeError, match="Traceback") as caught:
            client.infer(state)
        assert "RuntimeError: the policy raises at decision 1" in str(caught.value)
        policy.after = 100
        assert connect(server).infer(state)["actions"].shape == (1, 4)
        until(lambda: "polyarm_serve_errors_total 1" in server.metrics, "it was counted")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"\xc1", "that are no message"),
        (b"", "no message"),
        ("text", "requests are binary"),
        (wire.pack([1]), "a list; a request is a map"),
        (wire.pack({"polyarm": 3}), "expected an episode and a step"),
        (wire.pack({"state": None}), "an observation that is no array: None"),
        (wire.pack({"state": [[1], [1, 2]]}), "an observation that is no array"),
        (wire.pack({"state": np.zeros(4), "polyarm": {"episode": ["a"], "step": 0}}), "expected"),
        (b"\x81\xa1s\x83\xc4\x0b__ndarray__\xc3\xc4\x05dtype\xa2|O\xc4\x04data\xc4\x00", "dtype"),
    ],
)
def test_frames_that_are_no_request_are_answered_with_the_reason(doubling, connect, frame, message):
    _, server = doubling
    with websockets.sync.client.connect(server.address, compression=None) as client:
        client.recv()
        client.send(frame)
        assert message in client.recv(timeout=20)
        with pytest.raises(ConnectionClosed) as caught:
            client.recv(timeout=20)
        assert caught.value.rcvd.code == 1011
    assert connect(server).infer({"state": np.zeros(4)})["actions"].shape == (3, 4)


def test_a_message_beyond_the_limit_ends_its_connection_alone(connect):
    options = ServeOptions(port=0, mapping="plain", max_message_mib=1)
    with serving(CountingPolicy((4,)), BOX, options) as server:
        large = connect(server)
        with pytest.raises(ConnectionClosed, match="1009"):
            large.infer({"state": np.zeros(2**20 // 8)})
        assert connect(server).infer({"state": np.zeros(4)})["actions"].shape == (1, 4)


def test_only_who_knows_the_key_gets_in(connect):
    with serving(CountingPolicy((4,)), BOX, ANY, api_key="secret") as server:
        for wrong in ({}, {"api_key": "guess"}, {"api_key": "secret2"}):
            with pytest.raises(InvalidStatus, match="401"):
                connect(server, **wrong)
        client = connect(server, api_key="secret")
        assert client.infer({"state": np.zeros(4)})["actions"].shape == (1, 4)
        assert get(server, "/healthz") == (200, "OK\n")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(server, "/metrics")
        status, text = get(server, "/metrics", Authorization="Api-Key secret")
        assert status == 200
        assert "polyarm_serve_refused_total 4" in text
        assert 'polyarm_serve_batch_rows_bucket{le="+Inf"} 1' in text


def test_web_pages_and_too_many_clients_are_turned_away(connect):
    options = ServeOptions(port=0, mapping="plain", max_clients=1)
    with serving(CountingPolicy((4,)), BOX, options) as server:
        with pytest.raises(InvalidStatus, match="403"):
            websockets.sync.client.connect(server.address, origin="https://page.org").__enter__()
        connect(server)
        with pytest.raises(InvalidStatus, match="503"):
            connect(server)


def test_a_client_that_leaves_in_the_middle_harms_nobody(doubling, connect):
    policy, server = doubling
    policy.may_go_on.clear()
    with websockets.sync.client.connect(server.address, compression=None) as leaving:
        leaving.recv()
        leaving.send(wire.pack({"state": np.zeros(4)}))
        assert policy.asked.wait(20)
        leaving.socket.shutdown(socket.SHUT_RDWR)
    policy.may_go_on.set()
    assert connect(server).infer({"state": np.zeros(4)})["actions"].shape == (3, 4)
    until(lambda: policy.ended, "the episode of who left is over")


def test_a_server_that_stops_answers_what_was_asked(connect):
    policy = Doubling()
    policy.may_go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        with serving(policy, BOX, ANY) as server:
            busy, idle = connect(server), connect(server)
            future = pool.submit(busy.infer, {"state": np.ones(4, np.float32)})
            assert policy.asked.wait(20)
            threading.Timer(0.2, policy.may_go_on.set).start()
        np.testing.assert_array_equal(future.result(20)["actions"], np.full((3, 4), 2))
    with pytest.raises(ConnectionClosed):
        idle.infer({"state": np.zeros(4)})
    assert len(policy.ended) == 1


def test_a_policy_that_never_returns_does_not_keep_the_server():
    policy = Doubling()
    policy.may_go_on.clear()
    options = ServeOptions(port=0, mapping="plain", grace_s=0.1)
    began = time.monotonic()
    with (
        serving(policy, BOX, options) as server,
        websockets.sync.client.connect(server.address, compression=None) as client,
    ):
        client.recv()
        client.send(wire.pack({"state": np.zeros(4)}))
        assert policy.asked.wait(20)
    assert time.monotonic() - began < 18
    policy.may_go_on.set()


def test_what_cannot_be_served_is_refused():
    with pytest.raises(InvalidCall, match="expert acts inside its env"):
        PolicyServer(ExpertPolicy(), BOX, ANY)
    with pytest.raises(InvalidCall, match="serving needs a table"):
        PolicyServer(CountingPolicy(), BOX, ServeOptions(mapping="math:hypot"))
    for wrong in ({"max_batch": 0}, {"max_wait_ms": -1}, {"port": 70000}, {"grace_s": -1}):
        with pytest.raises(InvalidCall, match=next(iter(wrong)).replace("_", "-")):
            ServeOptions(**wrong)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = ServeOptions(port=taken.getsockname()[1])
        with (
            pytest.raises(StorageError, match="cannot listen at"),
            serving(CountingPolicy(), BOX, options),
        ):
            pass


def test_loopback_is_told_from_the_world():
    assert [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1")] == [True] * 3
    assert [is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "example.org")] == [False] * 3
    assert ServeOptions().host == "127.0.0.1"


def test_a_full_queue_makes_clients_wait_and_loses_none(connect):
    options = ServeOptions(port=0, mapping="plain", max_queue=1, max_batch=1)
    policy = CountingPolicy((4,))
    with serving(policy, BOX, options) as server, ThreadPoolExecutor(6) as pool:
        clients = [connect(server) for _ in range(6)]
        requests = [{"state": np.zeros(4)}] * 6
        for _ in range(3):
            assert len(list(pool.map(WebsocketClientPolicy.infer, clients, requests))) == 6
    assert policy.batch_sizes == [1] * 18


def test_it_runs_in_an_event_loop_of_somebody_else():
    async def main():
        server = PolicyServer(CountingPolicy((4,)), BOX, ANY)
        stop, started = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(server.run(stop, started))
        await started.wait()
        assert server.port
        stop.set()
        await task

    asyncio.run(main())


def test_a_server_that_cannot_decide_any_more_ends_with_the_reason(monkeypatch):
    async def broken(self):
        raise FloatingPointError("a bug")

    monkeypatch.setattr("polyarm.serving.batching.Batcher._gather", broken)

    async def main():
        await PolicyServer(CountingPolicy((4,)), BOX, ANY).run(asyncio.Event())

    with pytest.raises(FloatingPointError, match="a bug"):
        asyncio.run(main())

"""Several copies of a policy behind one address."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from gymnasium import spaces
from openpi_client.websocket_client_policy import WebsocketClientPolicy

from polyarm.errors import InvalidCall
from polyarm.serving.batching import Replica
from polyarm.serving.options import ServeOptions
from polyarm.serving.replicas import on_gpus
from polyarm.serving.server import serving
from polyarm.testing.policies import CountingPolicy

BOX = spaces.Box(-1, 1, (4,), np.float32)
ANY = ServeOptions(port=0, mapping="plain", max_wait_ms=50)


class Together(CountingPolicy):
    """Answers when all others are asked, too."""

    def __init__(self, everybody):
        super().__init__((4,))
        self.everybody, self.keys, self.ended = everybody, [], []

    def act(self, batch):
        self.everybody.wait()
        self.keys.append(batch.keys)
        return np.zeros((len(batch), 1, 4), np.float32)

    def end(self, episodes):
        self.ended += episodes


def test_replicas_decide_at_the_same_time_each_for_its_own_episodes():
    everybody = threading.Barrier(2, timeout=20)
    policies = [Together(everybody), Together(everybody)]
    replicas = [Replica(policy) for policy in policies]
    with serving(policies[0], BOX, ANY, replicas=replicas) as server, ExitStack() as stack:
        clients = [WebsocketClientPolicy(server.address) for _ in range(4)]
        for client in clients:
            stack.callback(client._ws.close)
        with ThreadPoolExecutor(4) as pool:
            for _ in range(3):
                asked = [pool.submit(one.infer, {"state": np.zeros(4)}) for one in clients]
                assert all(each.result(20)["actions"].shape == (1, 4) for each in asked)
    met = [{key for keys in policy.keys for key in keys} for policy in policies]
    assert [len(keys) for keys in met] == [2, 2]
    assert not met[0] & met[1]
    assert [{*policy.ended} for policy in policies] == met


def test_every_gpu_has_a_policy_that_is_loaded_where_it_is_asked(monkeypatch):
    chosen = {}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda index: chosen.update({threading.get_ident(): index})
    )
    replicas = on_gpus([1, 0], lambda: chosen[threading.get_ident()])
    assert [replica.policy for replica in replicas] == [1, 0]
    asked = [replica.thread.run(lambda: chosen[threading.get_ident()]) for replica in replicas]
    assert asked == [1, 0]
    for replica in replicas:
        replica.thread.stop()


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InvalidCall, match="no GPU 1 for PyTorch, which sees 1"):
        on_gpus([1], lambda: None)

"""Policies for tests on a Ray cluster; its nodes import this."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import ray

from polyarm.contracts import Batch


class Leaning:
    """Acts by what it sees, what it is told, and noise."""

    row_independent = True
    size = 4

    def begin(self, episodes):
        pass

    def act(self, batch: Batch):
        noise = batch.noise(3, self.size)
        lean = batch.obs["state"][:, None, : self.size] + batch.steps[:, None, None]
        return np.tanh(noise + lean).astype(np.float32)


class Stuck(Leaning):
    """Does not answer."""

    def act(self, batch):
        time.sleep(600)


class Deadly(Leaning):
    """Takes its process with it."""

    def act(self, batch):
        os._exit(1)


class Mortal(Leaning):
    """Counts what episodes have asked; takes its process with it once, at the seventh question."""

    size = 2

    def __init__(self, folder):
        self.folder = folder
        self.asked = {}

    def act(self, batch):
        died = self.folder / "died"
        for key, step in zip(batch.keys, batch.steps, strict=True):
            assert self.asked.get(key, 0) == step // 3, "an episode went on without its beginning"
            self.asked[key] = self.asked.get(key, 0) + 1
        if sum(self.asked.values()) > 6 and not died.exists():
            died.touch()
            os._exit(1)
        return super().act(batch)


class Placed(Leaning):
    """Notes where it acts, and what its process has been given of that node."""

    def __init__(self, folder):
        self.folder = folder

    def act(self, batch):
        context = ray.get_runtime_context()
        note = self.folder / context.get_node_id()
        note.write_text(json.dumps(context.get_assigned_resources()))
        return super().act(batch)


class Patient(Placed):
    """Takes its time until it is told to hurry, so that whoever starts last gets episodes, too."""

    @property
    def gate(self):
        return self.folder.with_name("hurry")

    def act(self, batch):
        if not self.gate.exists():
            time.sleep(1)
        return super().act(batch)


def push_right(batch):
    """For CartPole, whose space is known only where it is built."""
    return np.ones(len(batch.keys), np.int64)

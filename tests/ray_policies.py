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

    def begin(self, episodes):
        pass

    def act(self, batch: Batch):
        noise = batch.noise(3, 4)
        lean = batch.obs["state"][:, None, :4] + batch.steps[:, None, None]
        return np.tanh(noise + lean).astype(np.float32)


class Stuck(Leaning):
    """Does not answer."""

    def act(self, batch):
        time.sleep(600)


class Deadly(Leaning):
    """Takes its process with it."""

    def act(self, batch):
        os._exit(1)


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

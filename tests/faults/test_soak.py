"""``make soak`` for some seconds: that it kills, notices, and finds nothing that grows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_some_seconds_of_random_kills_let_nothing_grow():
    command = [sys.executable, SOAK, "--minutes", "0.07", "--tasks", "toy/count-10", "--seed", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["problems"] == []
    assert sum(found["hits"].values()) > 0
    assert sum(found["errors"].values()) > 0
    assert found["envs_opened"] >= 1
    assert {"trainer: descriptors", "trainer: nbytes"} <= found["growth"].keys()

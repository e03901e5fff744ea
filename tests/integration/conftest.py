"""Chooses a display before any test module can import a simulator, and runs LIBERO's own envs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyarm.display import select

os.environ.update(select("auto", frames=True).env)
# llvmpipe draws on the calling thread: the same pixels, less CPU.
os.environ.setdefault("LP_NUM_THREADS", "0")
sys.path.append(str(Path(__file__).parent))  # for libero_reference and libero_play

from libero_reference import Plan

Seen = dict[str, Any]

PLAN_TIMEOUT_S = 100.0  # LIBERO tries a reset again and again, whatever the reason of its failure


class References:
    """A process in which LIBERO runs one plan after the other, ahead of the tests.

    Args:
        folder: For plans, results and output.
        plans: In the order in which they will be asked for.
    """

    def __init__(self, folder: Path, plans: list[Plan]) -> None:
        self._folder = folder
        (folder / "plans.json").write_text(json.dumps([asdict(plan) for plan in plans]))
        script = Path(__file__).with_name("libero_reference.py")
        with (folder / "output.txt").open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(script), str(folder)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LP_NUM_THREADS": "0", "OPENBLAS_NUM_THREADS": "1"},
            )

    def wait(self, plan: Plan) -> Seen:
        """What LIBERO did; waits for it."""
        file = self._folder / f"{plan.key}.npz"
        deadline = time.monotonic() + PLAN_TIMEOUT_S
        failure = file.with_suffix(".error")
        while not file.exists():
            if failure.exists():
                pytest.fail(f"LIBERO's own env fails with {plan}:\n{failure.read_text()}")
            ended = self._process.poll() is not None and not file.exists()
            if ended or time.monotonic() > deadline:
                output = (self._folder / "output.txt").read_text()[-3000:]
                what = f"ended ({self._process.returncode})" if ended else "is not ready in time"
                pytest.fail(f"LIBERO's own env {what} with {plan}:\n{output}", pytrace=False)
            time.sleep(0.02)
        with np.load(file) as seen:
            return dict(seen)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def references(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[References]:
    """Runs the plans of all tests that were selected."""
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    values = [value for call in calls for value in call.params.values()]
    plans = [value for value in values if isinstance(value, Plan)]
    running = References(tmp_path_factory.mktemp("reference"), list(dict.fromkeys(plans)))
    yield running
    running.close()


@pytest.fixture
def reference(request: pytest.FixtureRequest, references: References) -> Seen:
    """What LIBERO's own env did by a plan, which the test is parametrised with, indirectly."""
    return references.wait(request.param)


@pytest.fixture
def other_reference(request: pytest.FixtureRequest, references: References) -> Seen:
    """What it did by another plan."""
    return references.wait(request.param)

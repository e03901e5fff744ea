"""Envs that fail while a policy learns."""

from __future__ import annotations

import sys

import pytest

ENVS = """
from polyarm.testing import CrashingEnv

def once():
    return CrashingEnv(only_first={path!r})

def always():
    return CrashingEnv()
"""


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """Tasks ``failing:once``, one of whose envs fails at its first step, and ``failing:always``."""
    (tmp_path / "failing.py").write_text(ENVS.format(path=str(tmp_path / "has failed")))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("failing", None)

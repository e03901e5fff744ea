"""Envs made from their plans, and what is told of them; the same in workers and in this process."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import gymnasium

from polyarm import registry
from polyarm.display import xvfb
from polyarm.display.xvfb import XServer
from polyarm.errors import DisplayError
from polyarm.vector.plans import SlotPlan

RAISED = (Exception, SystemExit)
"""What an env may raise without ending the process that it is in."""


def build(plan: SlotPlan) -> gymnasium.Env[Any, Any]:
    """Build a slot's env, without a display."""
    return registry.load(plan.location).make(plan.spec)


def attach_display(plan: SlotPlan, env: gymnasium.Env[Any, Any]) -> None:
    """Give the env its GL contexts, if it has cameras."""
    if plan.spec.cameras:
        registry.load(plan.location).attach_display(env)


def open_screen() -> XServer:
    """Start an X server for this process.

    Raises:
        DisplayError: It does not start.
    """
    try:
        return xvfb.start()
    except (OSError, RuntimeError) as error:
        raise DisplayError(f"{error}. {xvfb.FIX} `polyarm doctor` looks further.") from error


def describe(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """What the trainer needs to know of an env it never holds."""
    spec = env.spec
    with contextlib.suppress(Exception):
        pickle.dumps(spec)
        return {**_description(env), "spec": spec}
    return {**_description(env), "spec": None}


def _description(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    return {
        "observation_space": env.observation_space,
        "action_space": env.action_space,
        "metadata": dict(env.metadata),
        "render_mode": env.render_mode,
    }

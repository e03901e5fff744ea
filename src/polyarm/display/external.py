"""An X server that somebody else runs, such as ``X :99`` with one screen per GPU.

Runs as a script to prove the server that its argument names. Standard library only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

ENV = {"MUJOCO_GL": "glfw", "PYOPENGL_PLATFORM": "glx", "QT_QPA_PLATFORM": "xcb"}
"""What a process needs in its environment, besides the server's name in ``DISPLAY``."""

FIX = "Start it, or use display='xvfb'."

BASE_DISPLAY = ("POLYARM_BASE_DISPLAY", "RLBENCH_BASE_DISPLAY")
"""Variables that name a server with a screen for every local rank."""


def display_name(asked: str, rank: int | None, environment: Mapping[str, str] = os.environ) -> str:
    """The value of ``DISPLAY`` for this rank.

    Args:
        asked: A base display such as ``":99"``, or "" for the one in the environment.
        rank: The local rank; it chooses the screen, unless the base display names one.
        environment: Where a base display or ``DISPLAY`` is looked up.

    Returns:
        ``":99.<rank>"`` from a base display, ``$DISPLAY`` as it is without one, "" without either.
    """
    named = [environment[variable] for variable in BASE_DISPLAY if environment.get(variable)]
    base = asked or next(iter(named), "")
    if not base:
        return environment.get("DISPLAY", "")
    host, _, numbers = base.rpartition(":")
    return base if "." in numbers else f"{host}:{numbers}.{rank or 0}"


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for somebody else's server, as RLBench runners do."""
    return environment.get("RLBENCH_PER_PROCESS_XVFB", "").strip() == "0" or any(
        environment.get(variable) for variable in BASE_DISPLAY
    )


if __name__ == "__main__":
    # A script run with -I does not find its neighbours; last, so that they hide nothing.
    sys.path.append(str(Path(__file__).parent))
    import glx  # type: ignore[import-not-found,unused-ignore]

    os.environ["DISPLAY"] = sys.argv[1]
    try:
        sys.stdout.write(f"an X server on {glx.prove()}")
    except (OSError, RuntimeError) as error:
        sys.exit(str(error))

"""Chooses a display before any test module can import a simulator."""

from __future__ import annotations

import os

from polyarm.display import select

os.environ.update(select("auto", frames=True).env)

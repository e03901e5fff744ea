"""Keeps episodes: videos, encoded in the worker that runs them, trajectories, LeRobot datasets.

Needs nothing but NumPy until a recorder is made; videos need ``pip install 'polyarm[video]'``,
datasets ``pip install 'polyarm[dataset]'``.
"""

from __future__ import annotations

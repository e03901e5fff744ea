"""Keeps episodes: videos, encoded in the worker that runs them, and trajectories as arrays.

Needs nothing but NumPy until a recorder is made; videos need ``pip install 'polyarm[video]'``.
"""

from __future__ import annotations

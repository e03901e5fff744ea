"""LIBERO: everything that touches it, and nothing else does."""

from polyarm.suites.libero.suite import Libero

__all__ = ["Libero"]

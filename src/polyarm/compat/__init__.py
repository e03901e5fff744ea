"""The surfaces of other projects over our engine, for code that was written for them."""

from __future__ import annotations

from polyarm.compat.copies import policy_copies

__all__ = ["policy_copies"]

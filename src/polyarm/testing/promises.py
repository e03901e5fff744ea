"""What the conformance kits share: whatever breaks, the failure says whose promise it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Name what raised, as an AssertionError.

    Args:
        what: What is called, such as ``"reset()"``.
    """
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error

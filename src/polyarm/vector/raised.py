"""What an exception says of itself, whatever it is: user code raises the oddest things."""

from __future__ import annotations

import traceback
from typing import Any

_MESSAGE_LETTERS = 10_000
_STACK_LETTERS = 100_000


def describe_error(error: BaseException) -> dict[str, Any]:
    """An exception as a letter."""
    return {
        "error_class": type(error).__name__,
        "message": _shortened(_text(error), _MESSAGE_LETTERS),
        "stack": _shortened("".join(traceback.format_exception(error)), _STACK_LETTERS),
    }


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception as another:  # noqa: BLE001  its own __str__ may raise anything
        return f"its text cannot be read, which raised {type(another).__name__}"


def _shortened(text: str, most: int) -> str:
    """The text, without its middle if it is long."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"

"""The caption under a picture: which task, which step, and how it ended.

It stands in a band of its own below the picture, so it hides nothing, and its layout is fixed for
the whole video: every row is there from the first frame on.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

_SMALLEST_FONT = 10
_PICTURE_HEIGHT_PER_FONT_SIZE = 24
_TITLE_ROWS = 2
_MARGIN = 2

_TEXT = (255, 255, 255)
_REACHED = (120, 230, 150)
_BAND = {"": (24, 24, 24), "success": (0, 104, 40), "failure": (150, 24, 24)}


@dataclass(frozen=True, slots=True)
class Label:
    """What a caption says about one frame.

    Attributes:
        step: Env steps made so far.
        success: Whether the env calls this very state a success.
        outcome: ``success`` or ``failure`` on an episode's last frame, "" on all others.
    """

    step: int
    success: bool
    outcome: str = ""


class Caption:
    """Draws the band below the pictures of one episode.

    Args:
        task: Its name; wrapped, and cut off at the end of its second row.
        max_steps: The episode's horizon, or 0 if it has none.
        picture_height: In pixels; larger pictures get larger letters.
        width: Of the picture and the band, in pixels.
    """

    def __init__(self, task: str, max_steps: int, picture_height: int, width: int) -> None:
        size = max(_SMALLEST_FONT, picture_height // _PICTURE_HEIGHT_PER_FONT_SIZE)
        self._font = _font(size)
        self._max_steps = max_steps
        self._width = width
        room = width - 2 * _MARGIN
        printable = "".join(letter if letter.isprintable() else "?" for letter in task)
        self._title = _wrapped(printable, self._font, room)
        longest = f"{self._progress(max_steps or 10_000)}  failure"
        self._shared_row = self._font.getlength(longest) <= room
        self._row_height = sum(self._font.getmetrics())
        rows = len(self._title) + (1 if self._shared_row else 2)
        band = rows * self._row_height + 2 * _MARGIN
        self.height = band + band % 2
        """Of the band, in pixels; even."""

    def band(self, label: Label) -> NDArray[np.uint8]:
        """The band for one frame, ``(height, width, 3)``."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (self._width, self.height), _BAND[label.outcome])
        draw = ImageDraw.Draw(image)
        row = _MARGIN
        for line in [*self._title, self._progress(label.step)]:
            draw.text((_MARGIN, row), line, fill=_TEXT, font=self._font)
            row += self._row_height
        status = label.outcome or ("success" if label.success else "")
        colour = _TEXT if label.outcome else _REACHED
        if self._shared_row:
            right = self._width - _MARGIN - self._font.getlength(status)
            draw.text((right, row - self._row_height), status, fill=colour, font=self._font)
        else:
            draw.text((_MARGIN, row), status, fill=colour, font=self._font)
        return np.asarray(image)

    def _progress(self, step: int) -> str:
        return f"step {step}/{self._max_steps}" if self._max_steps else f"step {step}"


@functools.lru_cache(maxsize=8)
def _font(size: int) -> FreeTypeFont:
    from PIL import ImageFont

    # With a size it is always the scalable font.
    return cast("FreeTypeFont", ImageFont.load_default(size))


def _wrapped(text: str, font: FreeTypeFont, room: int) -> list[str]:
    """The text in at most two rows of ``room`` pixels, broken after a separator where possible."""
    rows: list[str] = []
    while text and len(rows) < _TITLE_ROWS:
        fits = _fitting(text, font, room)
        if fits < len(text):
            breaks = [at + 1 for at, letter in enumerate(text[:fits]) if letter in " -_/."]
            if len(rows) == _TITLE_ROWS - 1:
                text = text[: max(1, _fitting(text, font, room - int(font.getlength("…"))))] + "…"
                fits = len(text)
            elif breaks and breaks[-1] > fits // 2:
                fits = breaks[-1]
        rows.append(text[:fits].strip())
        text = text[fits:]
    return rows


def _fitting(text: str, font: FreeTypeFont, room: int) -> int:
    """How many letters fit into ``room`` pixels, at least one."""
    count = 1
    while count < len(text) and font.getlength(text[: count + 1]) <= room:
        count += 1
    return count

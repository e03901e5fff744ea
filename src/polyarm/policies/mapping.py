"""Which observation goes over the wire under which name, and back again on the other side.

``libero`` is what openpi's LIBERO example sends. Others are a JSON or YAML file::

    {"observation/image": {"from": "pixels/corner2", "resize": 224, "rotate": true},
     "observation/state": "state",
     "prompt": "instruction",
     "execute": 5}
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import Batch, map_leaves
from polyarm.errors import MissingExtra, PolicyError, UnknownName, WireError
from polyarm.policies.fingerprints import function_fingerprint

Array = NDArray[Any]

RESERVED = ("prompt", "reset", "polyarm")
"""Names in a request that are no observations."""
_INSTRUCTION = "instruction"
_WHOLE = "observation"
"""Where an observation is a bare array, the name it travels under."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a part of a request comes from.

    Attributes:
        key: A key of the observation, or ``"instruction"``.
        resize: Side of the square that a frame is resized to: bilinear, aspect kept, padded.
        rotate: Turn a frame by 180° first.
    """

    key: str
    resize: int | None = None
    rotate: bool = False

    def take(self, batch: Batch, row: int) -> Any:
        """What is sent for a row.

        Raises:
            PolicyError: The observation has no such key.
        """
        if self.key == _INSTRUCTION:
            return batch.instructions[row]
        if not isinstance(batch.obs, Mapping) or self.key not in batch.obs:
            found = ", ".join(map(str, batch.obs)) if isinstance(batch.obs, Mapping) else "an array"
            hint = "; name its camera with --cameras" if self.key.startswith("pixels/") else ""
            raise PolicyError(
                f"the server is to be sent {self.key!r}, but the observation has {found}{hint}",
                row=row,
            )
        value = batch.obs[self.key][row]
        if self.rotate:
            value = value[::-1, ::-1]
        return value if self.resize is None else resize_with_padding(value, self.resize)


@dataclass(frozen=True, slots=True)
class ObservationMapping:
    """How requests are made of observations, and observations of requests.

    Attributes:
        sources: By name in the request; None sends every observation under its own name, and the
            instruction as ``prompt``.
        execute: Actions executed before the policy is asked again, unless the run says otherwise.
        function: Makes the request instead: called with a batch and a row, it returns a mapping.
    """

    sources: Mapping[str, Source] | None = None
    execute: int | None = None
    function: Callable[[Batch, int], Mapping[str, Any]] | None = None

    @property
    def needs_frames(self) -> bool:
        """Whether frames are sent, as far as can be known."""
        if self.sources is None:
            return True
        return any(source.key.startswith("pixels/") for source in self.sources.values())

    @property
    def table(self) -> dict[str, Any]:
        """All of it as plain values, such as `mapping_from` takes."""
        told: dict[str, Any] = {"execute": self.execute} if self.execute else {}
        if self.function is not None:
            return {**told, "function": function_fingerprint(self.function)}
        for name, source in (self.sources or {}).items():
            told[name] = {"from": source.key, "resize": source.resize, "rotate": source.rotate}
        return told

    def request(self, batch: Batch, row: int) -> dict[str, Any]:
        """The request about one row of a batch."""
        if self.function is not None:
            return dict(self.function(batch, row))
        if self.sources is not None:
            return {name: source.take(batch, row) for name, source in self.sources.items()}
        own = map_leaves(lambda leaf: leaf[row], batch.obs)
        named = own if isinstance(own, Mapping) else {_WHOLE: own}
        return {**named, "prompt": batch.instructions[row]}

    def observation(self, request: Mapping[str, Any]) -> tuple[Any, str]:
        """The observation and the instruction in a request: leaves without a batch dimension.

        Raises:
            WireError: Something is missing.
        """
        if self.sources is None:
            own = {name: value for name, value in request.items() if name not in RESERVED}
            obs = own[_WHOLE] if set(own) == {_WHOLE} else own
            return map_leaves(_leaf, obs), _text(request.get("prompt"))
        obs, instruction = {}, ""
        for name, source in self.sources.items():
            if source.key == _INSTRUCTION:
                instruction = _text(request.get(name))
            elif name not in request:
                found = ", ".join(map(str, request)) or "nothing"
                raise WireError(f"the request lacks {name!r}; it has {found[:300]}")
            else:
                obs[source.key] = _leaf(request[name])
        return obs, instruction


def _libero(*, rotate: bool) -> ObservationMapping:
    return ObservationMapping(
        {
            "observation/image": Source("pixels/agentview", 224, rotate),
            "observation/wrist_image": Source("pixels/robot0_eye_in_hand", 224, rotate),
            "observation/state": Source("state"),
            "prompt": Source(_INSTRUCTION),
        },
        execute=5,
    )


MAPPINGS = {
    # The LIBERO suite has turned its frames already, unless it is told orientation=raw.
    "libero": _libero(rotate=False),
    "libero-raw": _libero(rotate=True),
    "plain": ObservationMapping(),
}
"""Mappings by name."""

MAPPED_ORIENTATIONS = {"libero": "rot180", "libero-raw": "raw"}
"""How LIBERO's frames must come for a mapping."""


def load_mapping(name: str) -> ObservationMapping:
    """The mapping that ``name`` stands for: one of ours, a JSON or YAML file, ``module:function``.

    Raises:
        UnknownName: There is no such mapping.
        PolicyError: The file cannot be read, or holds something else.
    """
    if name in MAPPINGS:
        return MAPPINGS[name]
    path = Path(name)
    if path.suffix in (".json", ".yaml", ".yml"):
        try:
            found = _parsed(path)
        except (OSError, ValueError) as error:
            raise PolicyError(f"cannot read the mapping {path}: {error}") from error
        return mapping_from(found, str(path))
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute):
        hint = "Or a file (.json, .yaml), or module:function."
        raise UnknownName("mapping of observations", name, MAPPINGS, hint)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PolicyError(f"cannot load the mapping {name!r}: {error}") from error
    if not callable(function):
        raise PolicyError(f"the mapping {name!r} is no function of a batch and a row: {function!r}")
    return ObservationMapping(function=function)


def mapping_from(table: Any, origin: str) -> ObservationMapping:
    """A mapping from plain values.

    Args:
        table: By name in the request: a key of the observation, or ``{"from": …, "resize": …,
            "rotate": …}``; and ``execute``. Without any name, all observations go as they are.
        origin: Where it was found, for messages.

    Raises:
        PolicyError: It is none.
    """
    if not isinstance(table, Mapping):
        raise PolicyError(f"the mapping in {origin} is a {type(table).__qualname__}, not a table")
    rest = dict(table)
    execute = rest.pop("execute", None)
    if execute is not None and (type(execute) is not int or execute < 1):
        raise PolicyError(f"execute in {origin} is {execute!r}, expected a whole number from 1")
    sources = {str(name): _source(str(name), given, origin) for name, given in rest.items()}
    return ObservationMapping(sources or None, execute)


def resize_with_padding(frame: Array, side: int) -> Array:
    """A frame (H, W, 3) uint8 as a square: bilinear, aspect kept, centred on black.

    The rule of openpi's client, to the bit.
    """
    height, width = frame.shape[:2]
    if (height, width) == (side, side):
        return frame
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("resizing frames needs Pillow: pip install 'polyarm[serve]'") from error

    ratio = max(width / side, height / side)
    size = (int(width / ratio), int(height / ratio))
    image = Image.fromarray(np.ascontiguousarray(frame))
    resized = image.resize(size, resample=Image.Resampling.BILINEAR)
    square = Image.new(resized.mode, (side, side), 0)
    square.paste(resized, ((side - size[0]) // 2, (side - size[1]) // 2))
    return np.asarray(square)


def digest(table: Mapping[str, Any]) -> str:
    """What tells plain values from others, in a few letters."""
    text = json.dumps(table, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _parsed(path: Path) -> Any:
    text = path.read_text()
    if path.suffix == ".json":
        return json.loads(text)
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra(f"{path} needs PyYAML: pip install 'polyarm[report]'") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _source(name: str, given: Any, origin: str) -> Source:
    if isinstance(given, str):
        return Source(given)
    fields = {"from", "resize", "rotate"}
    if not isinstance(given, Mapping) or "from" not in given or set(given) - fields:
        raise PolicyError(
            f"{name!r} in {origin} is {given!r}, expected a key of the observation or"
            f' {{"from": key, "resize": side, "rotate": true}}'
        )
    key, resize = given["from"], given.get("resize")
    rotate = given.get("rotate") or False
    whole = resize is None or (type(resize) is int and 1 <= resize <= 4096)
    if not isinstance(key, str) or not whole or not isinstance(rotate, bool):
        raise PolicyError(f"{name!r} in {origin} is {dict(given)!r}; resize is a number of pixels")
    return Source(key, resize, rotate)


def _leaf(value: Any) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise WireError(f"an observation that is no array: {error}") from error
    if array.dtype.kind == "O":
        raise WireError(f"an observation that is no array: {str(value)[:100]}")
    return array


def _text(value: Any) -> str:
    return "" if value is None else str(value)

"""What tells one policy from another, so that results of two are never mixed.

A policy may say it itself, with a ``fingerprint``. For others it is made of what can be seen: the
source of their class or function, and their plain attributes and arrays.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_DEPTH = 6


def policy_fingerprint(policy: Any) -> Any:
    """What a policy says of itself, or else what can be seen of it."""
    found = getattr(policy, "fingerprint", None)
    if found is not None:
        return found() if callable(found) else found
    digest = hashlib.sha256()
    _add(digest, vars(policy) if hasattr(policy, "__dict__") else {}, _DEPTH)
    return {
        "class": _qualified(type(policy)),
        "source": _source_digest(type(policy)),
        "state": digest.hexdigest()[:32],
    }


def function_fingerprint(function: Callable[..., Any]) -> dict[str, Any]:
    """A function by its name, its source and what it closes over."""
    inner = getattr(function, "func", function)  # a partial's
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    digest = hashlib.sha256(_source_digest(named).encode())
    for name in ("args", "keywords", "__defaults__", "__kwdefaults__"):
        _add(digest, getattr(function, name, None), _DEPTH)
    for cell in getattr(inner, "__closure__", None) or ():
        _add(digest, cell.cell_contents, _DEPTH)
    if named is not inner:
        _add(digest, vars(inner) if hasattr(inner, "__dict__") else {}, _DEPTH)
    return {"name": _qualified(named), "source": digest.hexdigest()[:32]}


def files_digest(path: Path) -> str:
    """A digest of a file, or of all files below a folder with their names."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.is_file():
            digest.update(str(file.relative_to(path)).encode(errors="surrogatepass") + b"\0")
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def source_file_digest(module: str) -> str:
    """A digest of an imported module's file, or "" if it has none."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return files_digest(Path(file)) if file and Path(file).is_file() else ""


def _source_digest(thing: Any) -> str:
    try:
        text = inspect.getsource(thing)
    except (OSError, TypeError):
        code = getattr(thing, "__code__", None)
        text = repr((code.co_code, code.co_names, code.co_consts)) if code else repr(thing)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def _add(digest: Any, value: Any, depth: int) -> None:
    """Add what a value holds; of objects that cannot be looked into, their class."""
    digest.update(type(value).__qualname__.encode() + b"\0")
    if isinstance(value, _PLAIN):
        digest.update(repr(value).encode(errors="surrogatepass"))
    elif isinstance(value, ModuleType):
        digest.update(value.__name__.encode())
    elif isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        if not array.dtype.hasobject:
            digest.update(array.tobytes())
    elif hasattr(value, "detach") and hasattr(value, "cpu"):
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(_byte_type()).numpy().tobytes())
    elif depth and isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            digest.update(repr(key).encode(errors="surrogatepass"))
            _add(digest, value[key], depth - 1)
    elif depth and isinstance(value, list | tuple):
        for each in value:
            _add(digest, each, depth - 1)
    elif depth and hasattr(value, "state_dict"):
        _add(digest, dict(value.state_dict()), depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, type):
        _add(digest, dict(vars(value)), depth - 1)


def _byte_type() -> Any:
    torch: Any = sys.modules["torch"]  # whoever holds a tensor has imported it
    return torch.uint8


def _qualified(thing: Any) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"

"""openpi's messages: msgpack with NumPy arrays in it, as its client and server write them.

An array is a map ``{b"__ndarray__": True, b"data": …, b"dtype": "<f4", b"shape": […]}``, a NumPy
scalar ``{b"__npgeneric__": True, b"data": …, b"dtype": …}``. What is read came from elsewhere:
nothing in it is run, and whatever it claims, no more is allocated than a few times its own size.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.errors import MissingExtra, WireError

Array = NDArray[Any]

MAX_NBYTES = 64 * 2**20
"""Of a message, unless somebody says otherwise."""

_DTYPE = re.compile(
    r"[<>|=](?:b1|[iu][1248]|f[248]|[SU][1-9]\d{0,8}|[mM]8(?:\[\d{0,6}[A-Za-z]{1,2}(?:/\d{1,6})?\])?)",
    re.ASCII,
)
_SCALARS: dict[str, tuple[type, ...]] = {
    "b": (bool,),
    "i": (int,),
    "u": (int,),
    "f": (int, float),
    "S": (bytes,),
    "U": (str,),
}
_MAX_DIMENSIONS = 32
# msgpack makes room for a list's announced length before it has seen any of it, at each of up to
# 1024 levels. Lists are shapes and words; numbers travel as arrays.
_MAX_LIST = 4096
_MAX_MAP = 65536


def library(name: str) -> Any:
    """A module of the libraries that the wire needs, such as ``"websockets.asyncio.client"``.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise MissingExtra(
            f"talking to policy servers needs {package}: pip install 'polyarm[serve]'"
        ) from error


def pack(message: Any, plain: Callable[[Any], Any] | None = None) -> bytes:
    """A message of maps, lists, text, bytes, numbers and arrays as bytes.

    Args:
        message: The message.
        plain: Makes maps of arrays and NumPy scalars; by default openpi's.

    Raises:
        WireError: It holds something else, such as an array of objects.
    """
    try:
        packed: bytes = library("msgpack").packb(message, default=plain or _plain)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"this cannot be sent: {error}") from error
    return packed


def unpack(
    data: bytes,
    max_nbytes: int = MAX_NBYTES,
    restored: Callable[[dict[Any, Any]], Any] | None = None,
) -> Any:
    """What `pack`, or openpi's own packer, made bytes of. Arrays are read-only.

    Args:
        data: One whole message.
        max_nbytes: Longer ones are refused.
        restored: Makes arrays of maps that hold one; by default of openpi's.

    Raises:
        WireError: It is no such message.
    """
    if len(data) > max_nbytes:
        raise WireError(f"a message of {len(data)} bytes; the limit is {max_nbytes}")
    msgpack = library("msgpack")
    try:
        return msgpack.unpackb(
            data,
            object_hook=restored or _restored,
            ext_hook=_refused,
            max_array_len=_MAX_LIST,
            max_map_len=_MAX_MAP,
            max_ext_len=0,
        )
    except WireError:
        raise
    except (msgpack.UnpackException, ValueError, TypeError, OverflowError) as error:
        reason = str(error) or type(error).__name__
        raise WireError(f"{len(data)} bytes that are no message: {reason}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        dtype = _checked(value.dtype.str)
        # Numbers that lie in a row are taken from where they are; msgpack copies them anyway.
        in_place = dtype.kind in "biuf" and value.flags.c_contiguous and value.nbytes
        return {
            b"__ndarray__": True,
            b"data": value.data if in_place else value.tobytes(),
            b"dtype": value.dtype.str,
            b"shape": value.shape,
        }
    if isinstance(value, np.generic):
        dtype = _checked(value.dtype.str)
        if dtype.kind not in _SCALARS:
            raise TypeError(f"a scalar of dtype {dtype.str}; make it an array")
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": dtype.str}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__qualname__} has no place in a message")


def _restored(found: dict[Any, Any]) -> Any:
    if b"__ndarray__" in found:
        return restored_array(found.get(b"dtype"), found.get(b"data"), found.get(b"shape"))
    if b"__npgeneric__" in found:
        return _scalar(found)
    return found


def restored_array(dtype_name: Any, data: Any, shape: Any) -> Array:
    """An array of what a message says of it, read-only and without a copy.

    Raises:
        WireError: That is no array, or one of objects.
    """
    dtype = _checked(dtype_name)
    if not isinstance(data, bytes):
        raise WireError(f"an array whose data are a {type(data).__qualname__}, not bytes")
    if (
        not isinstance(shape, list)
        or len(shape) > _MAX_DIMENSIONS
        or not all(type(side) is int and side >= 0 for side in shape)
    ):
        raise WireError(f"an array of shape {str(shape)[:100]}")
    needed = math.prod(shape) * dtype.itemsize
    if needed != len(data) or (needed == 0 and math.prod(filter(None, shape)) > 2**31):
        raise WireError(
            f"an array of shape {tuple(shape)} and dtype {dtype.str} takes {needed} bytes, found"
            f" {len(data)}"
        )
    return np.ndarray(tuple(shape), dtype, data)


def _scalar(found: Mapping[bytes, Any]) -> Any:
    dtype, value = _checked(found.get(b"dtype")), found.get(b"data")
    # By type, not by what NumPy would make of it: bytes_(10**9) is a gigabyte of zeros.
    if type(value) not in _SCALARS.get(dtype.kind, ()):
        raise WireError(f"a scalar of dtype {dtype.str} from a {type(value).__qualname__}")
    if isinstance(value, int) and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise WireError(f"a scalar of dtype {dtype.str} that is {value}")
    return dtype.type(value)


def _checked(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise WireError(
            f"dtype {str(name)[:100]!r}; sent are booleans, integers, floats of up to 8 bytes, text"
            f" and times, no objects, records or complex numbers"
        )
    try:
        return np.dtype(name)
    except (TypeError, ValueError) as error:
        raise WireError(f"dtype {name!r}: {error}") from error


def _refused(code: int, data: bytes) -> Any:
    raise WireError(f"an extension type, {code}; these messages have none")

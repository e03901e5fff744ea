"""LIBERO's initial states, read without torch.

The files are archives that torch wrote, but all they hold is a pickled NumPy array. The unpickler
here admits the few names that takes and nothing else, so that a file cannot run code.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.errors import StorageError

_ADMITTED = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}

# What reading a damaged archive or pickle can end with, even when it may call next to nothing.
_DAMAGE = (
    OSError,
    EOFError,
    zipfile.BadZipFile,
    pickle.UnpicklingError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
)


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no array needs")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read(file: Path) -> NDArray[np.float64]:
    """Initial states, float64 (n, 1 + nq + nv): time, positions, velocities.

    Raises:
        StorageError: The file is missing, damaged or holds anything but such an array.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise pickle.UnpicklingError("it is not an archive written by torch.save")
            states = _ArrayUnpickler(io.BytesIO(archive.read(pickles[0]))).load()
    except _DAMAGE as error:
        raise _unreadable(file, str(error)) from error
    if not isinstance(states, np.ndarray) or states.ndim != 2 or states.dtype != np.float64:
        raise _unreadable(file, "it does not hold an array of states")
    return states


def _unreadable(file: Path, reason: str) -> StorageError:
    return StorageError(
        f"the initial states in {file} cannot be read: {reason}. "
        "They come with hf-libero: polyarm setup libero --force installs it anew."
    )

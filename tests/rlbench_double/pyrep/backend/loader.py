"""Finding the simulator's library and Qt's plugins, as the dynamic loader and Qt do.

Both are only insisted on with the switch `loader`: the real PyRep always does.
"""

import os
from pathlib import Path

from pyrep.backend import switches

LIBRARY = "libcoppeliaSim.so.1"


def find_library() -> None:
    """Raise what importing the real extension module raises without its library.

    The dynamic loader reads LD_LIBRARY_PATH when the process starts, so setting it in `os.environ`
    later is too late, here as there.
    """
    if switches.find("loader") is None:
        return
    start = Path("/proc/self/environ").read_bytes().split(b"\0")
    path = next((entry[16:] for entry in start if entry.startswith(b"LD_LIBRARY_PATH=")), b"")
    if not any(Path(folder.decode(), LIBRARY).exists() for folder in path.split(b":") if folder):
        raise ImportError(
            f"{LIBRARY}: cannot open shared object file: No such file or directory",
            name="pyrep.backend._sim_cffi",
        )


def lacks_plugins() -> bool:
    """Whether Qt would find no platform plugin at all."""
    folder = os.environ.get("QT_QPA_PLATFORM_PLUGIN_PATH", "")
    return switches.find("loader") is not None and not Path(folder or "/nowhere").is_dir()

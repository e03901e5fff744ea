"""VirtualGL: GPU rendering for simulators that insist on an X server.

Windows live on an Xvfb; what they draw is sent to the GPU through EGL and read back.

Runs as a script to prove itself, on the GPU of a CUDA index if one is given. Standard library
only.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

_LIBRARIES = ("libdlfaker.so", "libvglfaker.so")

ENV: dict[str, str] = {}
FIX = ""

MISSING = (
    "VirtualGL is not installed (virtualgl.org, version 3 or newer for its EGL back end). "
    "Without it, use display='xvfb' (software rendering), or an X server on the GPU "
    "(`polyarm setup xorg`) with display='external'"
)


def environment(egl_index: int) -> dict[str, str]:
    """What a process needs to have its GLX calls rendered by EGL device ``egl_index``.

    Raises:
        OSError: VirtualGL is not installed.
    """
    if shutil.which("vglrun") is None:
        raise OSError(MISSING)
    # By name alone: the dynamic loader finds the build that fits the process.
    preload = [*_LIBRARIES, *filter(None, [os.environ.get("LD_PRELOAD")])]
    return {
        "VGL_DISPLAY": f"egl{egl_index}",
        "VGL_READBACK": "sync",
        "LD_PRELOAD": ":".join(preload),
    }


def _main(arguments: list[str]) -> str:
    # A script run with -I does not find its neighbours; last, so that they hide nothing.
    sys.path.append(str(Path(__file__).parent))
    import egl  # type: ignore[import-not-found,unused-ignore]
    import xvfb  # type: ignore[import-not-found,unused-ignore]

    added = environment(0)
    shared = egl.ranks_share_gpus(os.environ)
    library = egl.load()
    chosen = egl.chosen_index(library, int(arguments[0]) if arguments else None, shared=shared) or 0
    # VirtualGL counts the devices that can be initialized, and no others.
    place = sum(library.initialized(index) is not None for index in range(chosen))
    added["VGL_DISPLAY"] = f"egl{place}"
    os.environ.update(added)
    lines = [f"VirtualGL through {xvfb.prove()}"]
    return "\n".join([*lines, *(f"{key}={value}" for key, value in added.items())])


if __name__ == "__main__":
    try:
        sys.stdout.write(_main(sys.argv[1:]))
    except (OSError, RuntimeError) as error:
        sys.exit(str(error))

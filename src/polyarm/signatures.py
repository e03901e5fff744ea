"""Known ways in which simulators and displays die, read off what a worker leaves behind.

Pure and standard library only: errors explain themselves with it, and the doctor explains logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Signature:
    """Texts that give a failure away, what it means and what to do.

    Attributes:
        texts: A regular expression, looked for in what was written and said.
        means: What happened and what to do, in one or two sentences.
        suite: The suite it belongs to, or "" for the one that failed.
    """

    texts: str
    means: str
    suite: str = ""


_NO_X = (
    "The simulator found no X server. Leave `display` on 'auto', which starts one for each worker, "
    "or set DISPLAY to a server that runs."
)
_NATIVE = (
    "The process crashed in native code: the simulator's or the graphics driver's. If one worker "
    "runs and many do not, `polyarm doctor --ramp` finds how many do."
)
_EARLY = (
    "The worker died before its env was built, without a word: mostly the simulator's window or GL "
    "set-up."
)
_MEMORY = (
    "The worker ran out of memory. Run fewer workers or smaller images, or raise the memory limit "
    "of the worker or the job."
)

# The first match explains best: a cause stands before what it brings about.
_SIGNATURES = (
    _Signature(
        r"COPPELIASIM_ROOT (is )?not (defined|set)",
        "PyRep does not know where CoppeliaSim is. Set COPPELIASIM_ROOT, or run "
        "`polyarm setup rlbench`.",
        "rlbench",
    ),
    _Signature(
        r"libcoppeliaSim\.so\S*: cannot open shared object file",
        "The loader does not find CoppeliaSim's library. Add $COPPELIASIM_ROOT to LD_LIBRARY_PATH "
        "before Python starts, or run `polyarm setup rlbench`.",
        "rlbench",
    ),
    _Signature(
        r"No space left on device",
        "A disk is full: free some space where results, TMPDIR or the cache are.",
    ),
    _Signature(
        r"cv2/qt/plugins",
        "OpenCV has put its own Qt in front of CoppeliaSim's. pip uninstall opencv-python, then "
        "pip install 'opencv-python-headless<4.12'.",
        "rlbench",
    ),
    _Signature(
        r"Maximum number of clients reached",
        "The X server has as many clients as it allows. Raise MaxClients (`polyarm setup xorg`), "
        "or use display='xvfb', a server for each worker.",
        "rlbench",
    ),
    _Signature(r"could not connect to display", _NO_X, "rlbench"),
    _Signature(r"no X server answers|(unable to|[Cc]an't|cannot) open display", _NO_X),
    _Signature(
        r"Could not load the Qt platform plugin|no Qt platform plugin could be initialized",
        "Qt could not load its xcb plugin: libxcb libraries are missing, or "
        "QT_QPA_PLATFORM_PLUGIN_PATH is not $COPPELIASIM_ROOT.",
        "rlbench",
    ),
    _Signature(
        r"GLXBad(Context|FBConfig|Drawable)",
        "The X server refuses OpenGL: it has no GLX, or its driver is not the one of the GL "
        "library. Try display='xvfb'.",
    ),
    _Signature(
        r"(lib)?OSMesa\S*[^\n]*(cannot open|not installed|not found|No such file)"
        r"|(Unable|[Ff]ailed) to (load|find)[^\n]*OSMesa|has no attribute 'OSMesa",
        "OSMesa, which renders in software, is not installed: apt-get install libosmesa6, or use "
        "display='egl'.",
    ),
    _Signature(
        r"gladLoadGL error|eglInitialize|EGL_NOT_INITIALIZED|EGL_BAD_\w+|EGL device display"
        r"|libEGL\S*: cannot open",
        "EGL gave no OpenGL context: no GPU driver for graphics here (in a container: "
        "NVIDIA_DRIVER_CAPABILITIES=all), a wrong MUJOCO_EGL_DEVICE_ID, or no Mesa.",
    ),
    _Signature(
        r"\*\*\* buffer overflow detected \*\*\*",
        "CoppeliaSim crashed while starting, mostly because many of them start network add-ons at "
        "once. `polyarm setup rlbench` disables those.",
        "rlbench",
    ),
    _Signature(
        r"The X11 connection broke|XIO:\s+fatal IO error",
        "The X server died or dropped the connection, and takes its clients along. Use "
        "display='xvfb', or see why the shared server ended (memory, MaxClients).",
    ),
    _Signature(
        r"Handle \S+ does not exist",
        "The scene lacks an object that RLBench expects: CoppeliaSim is not exactly 4.1.0, PyRep "
        "and RLBench do not belong together, or the scene was not loaded.",
        "rlbench",
    ),
    _Signature(
        r"The call failed on the V-REP side",
        "CoppeliaSim refused a call; after SIGTERM, a lost display or a failed scene it refuses "
        "all. The worker has to be replaced.",
        "rlbench",
    ),
    _Signature(r"MemoryError|std::bad_alloc|Cannot allocate memory|outgrew memory_limit", _MEMORY),
    _Signature(r"\b[Ss]ignal 11\b|SIGSEGV|[Ss]egmentation fault", _NATIVE),
)


def explain(
    stderr: str, signal: str = "", phase: str = "", message: str = "", *, task: str = ""
) -> str | None:
    """What a failure means and what to do, if it is a known one.

    Args:
        stderr: What the worker wrote last.
        signal: Name of the signal that ended it, such as ``SIGSEGV``.
        phase: What it was doing, such as ``build``.
        message: What the engine says of it.
        task: Full name of its task, for the suite that should be checked.

    Returns:
        One to three sentences on one line, or None.
    """
    return next(explanations(stderr, signal, phase, message, task=task), None)


def explanations(
    stderr: str, signal: str = "", phase: str = "", message: str = "", *, task: str = ""
) -> Iterator[str]:
    """Everything known that these traces match, the best explanation first."""
    asked = task.partition("/")[0]
    for known in _SIGNATURES:
        if re.search(known.texts, f"{stderr}\n{message}\n{signal}"):
            yield _told(known.means, known.suite or asked)
    # In a log of somebody's own pipes; an env that raises it may just be reading a file.
    if not phase and re.search(r"\bEOFError\b", stderr):
        yield _told(_EARLY, asked)
    if not message.startswith("died"):
        return
    # A worker that hung is killed, too, but by us, and says so.
    if signal == "SIGKILL":
        means = "Something killed the worker, most likely the kernel for want of memory. "
        yield _told(f"{means}Run fewer workers, or smaller images.", asked)
    elif phase == "build" and not stderr.strip() and signal != "SIGSEGV":
        yield _told(_EARLY, asked)


def _told(means: str, suite: str) -> str:
    return f"{means} `polyarm doctor{f' --suite {suite}' if suite else ''}` checks it."

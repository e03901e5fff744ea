"""Real last words of workers, and what they mean."""

import pytest

from polyarm.errors import SlotError
from polyarm.signatures import explain, explanations

QT = """\
qt.qpa.plugin: Could not load the Qt platform plugin "xcb" in "/opt/CoppeliaSim" even though it was found.
This application failed to start because no Qt platform plugin could be initialized. Reinstalling the application may fix this problem.

Available platform plugins are: eglfs, minimal, minimalegl, offscreen, vnc, webgl, xcb.
"""  # noqa: E501
NO_DISPLAY = f"qt.qpa.xcb: could not connect to display :99\n{QT}"
OPENCV = QT.replace("/opt/CoppeliaSim", "/venv/lib/python3.10/site-packages/cv2/qt/plugins")
OVERFLOW = "*** buffer overflow detected ***: terminated\nAborted (core dumped)\n"
X11 = "The X11 connection broke (error 1). Did the X11 server die?\n"
XIO = (
    'XIO:  fatal IO error 11 (Resource temporarily unavailable) on X server ":99"\n'
    "      after 164 requests (164 known processed) with 0 events remaining.\n"
)
HANDLE = "RuntimeError: Handle Panda does not exist.\n"
V_REP = "RuntimeError: The call failed on the V-REP side. Return value: -1\n"
LIBRARY = (
    "ImportError: libcoppeliaSim.so.1: cannot open shared object file: No such file or directory\n"
)
EGL = "RuntimeError: Cannot initialize a EGL device display. This likely means that your EGL driver"
GLAD = "mujoco.FatalError: gladLoadGL error\n"
EGL_INITIALIZE = "OpenGL.raw.EGL._errors.EGLError: EGLError(err = EGL_NOT_INITIALIZED, baseOperation = eglInitialize)"  # noqa: E501
OSMESA = "ImportError: ('Unable to load OpenGL library', 'OSMesa: cannot open shared object file: No such file or directory', 'OSMesa', None)"  # noqa: E501
OSMESA_NONE = "AttributeError: 'NoneType' object has no attribute 'OSMesaCreateContextAttribs'"
GLX = """\
X Error of failed request:  GLXBadContext
  Major opcode of failed request:  152 (GLX)
  Minor opcode of failed request:  6 (X_GLXIsDirect)
"""
CLIENTS = "Maximum number of clients reached\nqt.qpa.xcb: could not connect to display :99.1\n"
EOF_ERROR = (
    '  File "multiprocessing/connection.py", line 383, in _recv\n    raise EOFError\nEOFError\n'
)


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (QT, "Qt could not load its xcb plugin"),
        (NO_DISPLAY, "found no X server"),
        (OPENCV, "OpenCV has put its own Qt"),
        (OVERFLOW, "network add-ons"),
        (X11, "The X server died"),
        (XIO, "The X server died"),
        (HANDLE, "not exactly 4.1.0"),
        (V_REP, "CoppeliaSim refused a call"),
        ("RuntimeError: COPPELIASIM_ROOT not defined. See installation.", "does not know where"),
        (LIBRARY, "LD_LIBRARY_PATH"),
        (EGL, "EGL gave no OpenGL context"),
        (GLAD, "EGL gave no OpenGL context"),
        (EGL_INITIALIZE, "EGL gave no OpenGL context"),
        (OSMESA, "libosmesa6"),
        (OSMESA_NONE, "libosmesa6"),
        (GLX, "refuses OpenGL"),
        (CLIENTS, "MaxClients"),
        ("OSError: [Errno 28] No space left on device: 'x.mp4'", "A disk is full"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "ran out of memory"),
        ("Error: signal 11:\n", "crashed in native code"),
        ("Fatal Python error: Segmentation fault\n", "crashed in native code"),
        (EOF_ERROR, "died before its env was built"),
    ],
)
def test_a_worker_s_last_words_are_explained(stderr, words):
    explanation = explain(stderr)
    assert explanation is not None
    assert words in explanation
    assert "\n" not in explanation
    assert len(explanation) < 330
    assert explanation.endswith("` checks it.")
    assert "`polyarm doctor" in explanation


@pytest.mark.parametrize(
    ("signal", "phase", "message", "words"),
    [
        ("SIGSEGV", "step", "died of SIGSEGV", "crashed in native code"),
        ("SIGKILL", "step", "outgrew memory_limit=1 bytes, was killed", "ran out of memory"),
        ("SIGKILL", "step", "died of SIGKILL", "most likely the kernel for want of memory"),
        ("", "build", "died with exit status 1", "died before its env was built"),
        ("SIGABRT", "build", "died of SIGABRT", "died before its env was built"),
        ("", "reset", "raised RuntimeError: Handle Panda does not exist.", "not exactly 4.1.0"),
    ],
)
def test_an_end_without_words_is_explained_by_how_it_came(signal, phase, message, words):
    assert words in (explain("", signal, phase, message) or "")


@pytest.mark.parametrize(
    ("stderr", "signal", "phase", "message"),
    [
        ("", "", "step", "raised ValueError: bad value"),
        ("a deprecation warning\n", "", "step", "died with exit status 3"),
        ("", "SIGKILL", "step", "did not answer within 60 s and was killed"),
        ("", "", "build", "raised KeyError: 'x'"),
        (EOF_ERROR, "", "build", "raised EOFError: Ran out of input"),
        ("", "SIGABRT", "step", "died of SIGABRT"),
    ],
)
def test_what_is_not_known_is_not_explained(stderr, signal, phase, message):
    assert explain(stderr, signal, phase, message) is None


def test_a_cause_is_told_before_what_it_brings_about():
    first, *others = explanations(f"{CLIENTS}{OVERFLOW}{HANDLE}")
    assert "MaxClients" in first
    assert len(others) == 3


def test_the_suite_to_check_is_the_one_that_failed_or_the_one_it_can_only_be():
    assert "--suite libero`" in (explain(GLAD, task="libero/spatial-0") or "")
    assert "--suite rlbench`" in (explain(HANDLE) or "")
    assert "`polyarm doctor` checks it." in (explain(GLAD) or "")


def slot_error(**changes):
    facts = {
        "kind": "died",
        "slot": 3,
        "task": "rlbench/open_drawer",
        "phase": "build",
        "step": 0,
        "message": "died of SIGABRT",
        "pid": 42,
        "signal": "SIGABRT",
        "stderr": NO_DISPLAY,
    }
    return SlotError(**{**facts, **changes})


def test_a_worker_s_error_carries_the_explanation_after_its_first_line():
    first, second, third, *_ = str(slot_error()).splitlines()
    assert first.endswith("died of SIGABRT in phase build [SIGABRT]")
    assert second == explain(NO_DISPLAY)
    assert third == "--- last stderr ---"


def test_a_neighbour_s_error_repeats_no_explanation():
    assert len(str(slot_error(kind="collateral", stderr="")).splitlines()) == 1


def test_the_trace_of_a_crash_may_be_all_there_is():
    stack = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x0 (most recent call first):"
    error = slot_error(message="died of SIGSEGV", signal="SIGSEGV", stderr="", stack=stack)
    assert "crashed in native code" in str(error).splitlines()[1]

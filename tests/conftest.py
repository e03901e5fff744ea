"""Fails every test that leaves something behind: a process, shared memory, a descriptor, a display.

Processes are ours if they descend from this one or carry our mark in their environment, which
survives `setsid` and the death of the parent in between.

With ``-n`` (pytest-xdist) several processes run tests side by side. Each has a mark and a folder
for temporary files of its own; X displays and shared memory with a name belong to whoever holds
them. What nobody holds any more may be of any of them: the process that started them looks for it
when they have ended.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

Found = Counter[str]

GRACE_S = 3.0
SIBLING = os.environ.get("PYTEST_XDIST_WORKER", "")
"""Our name among processes that run tests side by side, else empty."""

# It begins with the mark of the process that started us, so that this one finds what is ours, too.
MARK = (os.environ["POLYARM_TEST_RUN"] + SIBLING if SIBLING else uuid.uuid4().hex) + "."
os.environ["POLYARM_TEST_RUN"] = MARK

# Idle threads of OpenBLAS sleep at once instead of spinning, which took half of `import numpy`.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

# Opened once by a library and kept for the life of the process; not a leak.
KEPT_FILES = re.compile(
    r"/dev/(u?random|null|dri/.*|nvidia.*)|.*\.hypothesis.*|.*\.pyc?|.*\.so.*|.*/mpl-data/.*"
)
KEPT_PROCESSES = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")

# LIBERO's own envs run ahead of the tests that compare with them (the fixture `references`), which
# takes minutes: the files that wait for it belong in one test process, and that one starts at once.
TOGETHER = re.compile(r"(?<=integration/test_libero_)(engine|exact|frames|protocols)\.py")

# Who looks for a cluster finds any on this machine: one test process has them all, in turn.
CLUSTERS = re.compile(r".*/test_ray\.py$")

DOUBLE = Path(__file__).parent / "rlbench_double"
sys.path.append(str(Path(__file__).parent))  # for openpi_double

_strangers: set[tuple[int, bytes]] = set()
_failed = pytest.StashKey[bool]()
_before = pytest.StashKey[dict[str, Found]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """Small models are slower on several threads, which wait for one another."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    looks = {
        "process": processes,
        "descriptor": descriptors,
        "shared-memory mapping": mappings,
        "file": files,
    }
    before = {kind: look() for kind, look in looks.items()}
    yield
    # A failed test's traceback keeps its envs alive; what they hold is no finding of its own.
    if not request.node.stash.get(_failed, False):
        fail_on_leaks("test", looks, before)


@pytest.fixture(autouse=True, scope="session")
def no_leaks_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if SIBLING:
        tempfile.tempdir = os.environ["TMPDIR"] = str(tmp_path_factory.mktemp("temporary"))
    looks = {"process": processes, "file": files}
    before = {kind: look() for kind, look in looks.items()}
    yield
    fail_on_leaks("test run", looks, before)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Side by side, what takes long comes first and small files last: then all end together."""
    sizes = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[Any, ...]:
        folders = [name not in item.path.parts for name in ("integration", "faults", "unit")]
        together = bool(TOGETHER.search(str(item.path)))
        return *folders, not together, 0 if together else -sizes[item.path]

    if SIBLING:
        items.sort(key=place)


def pytest_collection_finish() -> None:
    """All that was imported and collected stays: nobody need look for garbage in it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keeps the tests of a file together, and those of some files that belong together."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # the order is ours, see above

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return "clusters" if CLUSTERS.match(scope) else TOGETHER.split(scope)[0]

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.pluginmanager.has_plugin("dsession"):  # others will run the tests
        session.stash[_before] = {"process": processes(), "file": unheld()}


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if (before := session.stash.get(_before, None)) is None:
        return
    try:
        fail_on_leaks("test run", {"process": processes, "file": unheld}, before)
    except pytest.fail.Exception as leaks:
        place = ("tests", None, "all")
        report = pytest.TestReport("tests", place, {}, "failed", str(leaks), "teardown")
        session.config.hook.pytest_runtest_logreport(report=report)
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def fail_on_leaks(
    who: str, looks: dict[str, Callable[[], Found]], before: dict[str, Found]
) -> None:
    deadline = time.monotonic() + GRACE_S
    while leaks := {kind: left for kind, look in looks.items() if (left := look() - before[kind])}:
        if time.monotonic() > deadline:
            found = [(kind, name) for kind, left in leaks.items() for name in left.elements()]
            lines = [f"  {kind}: {described(kind, name)}" for kind, name in found]
            kill(leaks.get("process", Counter()))
            pytest.fail("\n".join([f"the {who} left behind:", *lines]), pytrace=False)
        gc.collect()
        time.sleep(0.02)


def processes() -> Found:
    """Running processes of ours, and children nobody has waited for."""
    parents: dict[int, int] = {}
    marked = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile
            stat = Path(f"/proc/{entry}/stat").read_bytes()
            rest = stat[stat.rindex(b")") + 2 :].split(None, 20)
            pid, born = int(entry), rest[19]
            parents[pid] = int(rest[1])
            if (pid, born) not in _strangers:
                if MARK.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                    marked.append(pid)
                else:
                    _strangers.add((pid, born))
    ours = set(marked) | {pid for pid in parents if descends(pid, parents)}
    return Counter(str(pid) for pid in ours - {os.getpid()} if not is_kept(pid))


def descends(pid: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        pid = parents.get(pid, 0)
        if pid == os.getpid():
            return True
    return False


def is_kept(pid: int) -> bool:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return any(kept in command for kept in KEPT_PROCESSES)
    return True


def descriptors() -> Found:
    """Open descriptors of this process by kind; numbers and inodes are left out."""
    tracker = getattr(resource_tracker._resource_tracker, "_fd", None)
    found: Found = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor
            target = os.readlink(f"/proc/self/fd/{fd}")
            if int(fd) != tracker and not KEPT_FILES.fullmatch(target):
                found[re.sub(r":\[\d+\]", "", target)] += 1
    return found


def mappings() -> Found:
    """Mapped memfd blocks, which outlive their descriptors."""
    maps = Path("/proc/self/maps").read_bytes()
    return Counter(match.decode() for match in re.findall(rb"/memfd:\S*polyarm\S*", maps))


def files() -> Found:
    """Shared memory with a name, X displays and temporary files of ours."""
    there = held()
    ours = {os.getpid(), *map(int, processes())} if there else set()
    found = Counter(name for name, holders in there.items() if holders & ours)
    found.update(map(str, Path(tempfile.gettempdir()).glob("polyarm*")))
    return found if SIBLING else found + unheld()


def unheld() -> Found:
    """Shared memory and X displays of processes that have ended, whoever they were."""
    return Counter(name for name, holders in held().items() if not holders)


def held() -> dict[str, set[int]]:
    """Shared memory with a name, locks and sockets of X displays, and who holds them."""
    found: dict[str, set[int]] = {str(path): set() for path in Path("/dev/shm").iterdir()}
    for pid in filter(str.isdigit, os.listdir("/proc") if found else []):
        for name in found.keys() & blocks(pid):
            found[name].add(int(pid))
    for lock in Path("/tmp").glob(".X*-lock"):
        with contextlib.suppress(OSError):
            pid = lock.read_text().strip()
            alive = pid.isdigit() and Path("/proc", pid).exists()
            found[str(lock)] = {int(pid)} if alive else set()
    served = Path("/proc/net/unix").read_text()
    for socket in Path("/tmp/.X11-unix").glob("X*"):
        # Who serves it is among the processes, and found there.
        found[str(socket)] = {0} if f" {socket}\n" in served else set()
    return found


def blocks(pid: str) -> set[str]:
    """Names of the shared memory that a process has opened or mapped."""
    found: set[str] = set()
    with contextlib.suppress(OSError):  # it ended meanwhile
        found.update(re.findall("/dev/shm/.*", Path(f"/proc/{pid}/maps").read_text()))
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def described(kind: str, name: str) -> str:
    """The finding in words; a process by what it runs."""
    with contextlib.suppress(OSError):
        if kind == "process":
            command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            return f"{name} {command or Path(f'/proc/{name}/stat').read_text().split()[1:3]}"
    return name


def kill(leaked: Found) -> None:
    """End what a test left running, so that the tests after it start clean."""
    for pid in map(int, leaked):
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.fixture
def small_disk() -> Callable[[Path, str], contextlib.AbstractContextManager[Path]]:
    """Mounts a disk that is soon full, of a size such as ``"100k"``, as a new folder."""

    @contextlib.contextmanager
    def mounted(folder: Path, size: str) -> Iterator[Path]:
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "polyarm-test", str(folder)]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("mounting a small tmpfs needs root (CAP_SYS_ADMIN)")
        try:
            yield folder
        finally:
            subprocess.run(["umount", str(folder)], check=True)

    return mounted


@pytest.fixture
def rlbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """RLBench, PyRep and CoppeliaSim are installed, after a fashion; gives CoppeliaSim's folder.

    They can be imported here, in workers and on command lines. Nothing of them is left afterwards:
    no module, no cached list of tasks, no folder in the cache.
    """
    from polyarm.suites.rlbench import catalogue

    monkeypatch.syspath_prepend(str(DOUBLE))
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv(
        "PYTHONPATH", f"{DOUBLE}{os.pathsep}{inherited}" if inherited else str(DOUBLE)
    )
    monkeypatch.setenv("COPPELIASIM_ROOT", str(DOUBLE / "coppeliasim"))
    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path / "cache"))
    # Like the real one, it is imported only where the loader knew CoppeliaSim from the start.
    monkeypatch.setenv("RLBENCH_DOUBLE", "loader")
    for variable in (
        "DISPLAY",
        "LD_LIBRARY_PATH",
        "RLBENCH_BASE_DISPLAY",
        "LOCAL_RANK",
        "QT_QPA_PLATFORM_PLUGIN_PATH",
    ):
        monkeypatch.setenv(variable, "")  # so that it is put back whatever the test does
        monkeypatch.delenv(variable)
    catalogue._installed.cache_clear()
    yield DOUBLE / "coppeliasim"
    catalogue._installed.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("rlbench", "pyrep")]:
        del sys.modules[name]

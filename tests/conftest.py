"""Fails every test that leaves something behind: a process, shared memory, a descriptor, a display.

Processes are ours if they descend from this one or carry this run's mark in their environment,
which survives `setsid` and the death of the parent in between.
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

import pytest

sys.path.append(str(Path(__file__).parent))  # for rlbench_fixture

from rlbench_fixture import rlbench  # noqa: F401  a fixture for everybody

Found = Counter[str]

GRACE_S = 3.0
MARK = f"POLYARM_TEST_RUN={uuid.uuid4().hex}".encode()
os.environ.update([MARK.decode().split("=")])

# Opened once by a library and kept for the life of the process; not a leak.
KEPT_FILES = re.compile(r"/dev/(u?random|null|dri/.*|nvidia.*)|.*\.hypothesis.*|.*\.pyc?|.*\.so.*")
KEPT_PROCESSES = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")

_strangers: set[tuple[int, bytes]] = set()
_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


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
def no_leaks_of_the_run() -> Iterator[None]:
    looks = {"process": processes, "file": files}
    before = {kind: look() for kind, look in looks.items()}
    yield
    fail_on_leaks("test run", looks, before)


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
    """Running processes of this test run, and children nobody has waited for."""
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
                if MARK in Path(f"/proc/{entry}/environ").read_bytes():
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
    temporary = Path(tempfile.gettempdir())
    found = [*Path("/dev/shm").iterdir(), *Path("/tmp").glob(".X*-lock")]
    return Counter(str(path) for path in [*found, *temporary.glob("polyarm*")])


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

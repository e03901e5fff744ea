"""The leak fixture of tests/conftest.py finds what it is there to find."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

LEAKY = """
import mmap, os, subprocess, sys, tempfile
from pathlib import Path

kept = []

def test_clean():
    subprocess.run(["true"], check=True)
    os.close(os.eventfd(0))

def test_child():
    kept.append(subprocess.Popen(["sleep", "100"]))

def test_detached_grandchild():
    code = "import subprocess; subprocess.Popen(['sleep', '101'], start_new_session=True)"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_descriptor():
    kept.append(os.eventfd(0))

def test_mapping():
    fd = os.memfd_create("polyarm-leak")
    os.truncate(fd, 4096)
    kept.append(mmap.mmap(fd, 4096))
    os.close(fd)

def test_shared_memory():
    Path(os.environ["BLOCK"]).touch()

def test_display():
    Path(os.environ["LOCK"]).write_text(f"{2**22 + 1:10}\\n")

def test_file():
    path = Path(tempfile.mkstemp(prefix="polyarm-leak", dir=tempfile.gettempdir())[1])
    kept.append(path)
"""

MEETING = """
import time
from pathlib import Path

def meet(mine, other):
    Path(mine).touch()
    deadline = time.monotonic() + 30
    while not Path(other).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""

LEAKY_BESIDE_TIDY = """
import mmap, os, subprocess, tempfile
from pathlib import Path
from meeting import meet

kept = []

def test_leaky():
    meet("leaky begins", "tidy begins")
    kept.append(subprocess.Popen(["sleep", "100"]))
    with open(os.environ["BLOCK"], "w+b") as file:
        file.truncate(4096)
        kept.append(mmap.mmap(file.fileno(), 4096))
    Path(os.environ["LOCK"]).write_text(f"{os.getpid():10}\\n")
    tempfile.mkstemp(prefix="polyarm-leak")
    meet("leaked", "looked")
"""

TIDY_BESIDE_LEAKY = """
from meeting import meet

def test_tidy():
    meet("tidy begins", "leaked")

def test_next():
    meet("looked", "leaked")
"""


@pytest.fixture
def named() -> Iterator[dict[str, str]]:
    """Names of shared memory and of the lock of a display; both are free again afterwards."""
    names = {
        "BLOCK": f"/dev/shm/polyarm-leak-{os.getpid()}",
        "LOCK": f"/tmp/.X{os.getpid()}-lock",
    }
    yield names
    for name in names.values():
        Path(name).unlink(missing_ok=True)


def run_tests(folder: Path, names: dict[str, str], *arguments: str) -> str:
    """What pytest says of the tests in a folder, with a hasty copy of our conftest."""
    hasty = CONFTEST.read_text().replace("GRACE_S = 3.0", "GRACE_S = 0.3")
    (folder / "conftest.py").write_text(hasty)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "temporary").mkdir()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    run = subprocess.run(
        [*command, "--rootdir", str(folder)],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder / "temporary"), **names},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert run.returncode == 1, run.stderr
    return run.stdout


def test_the_fixture_finds_every_kind_of_leak_and_kills_leaked_processes(tmp_path, named):
    (tmp_path / "test_leaky.py").write_text(LEAKY)
    said = run_tests(tmp_path, named)
    assert "8 passed, 7 errors" in said, said
    for finding in (
        "process: [0-9]+ sleep 100",
        "process: [0-9]+ sleep 101",
        r"descriptor: anon_inode:\[eventfd\]",
        "shared-memory mapping: /memfd:polyarm-leak",
        f"file: {named['BLOCK']}",
        f"file: {named['LOCK']}",
        "file: .*/polyarm-leak",
    ):
        assert re.search(finding, said), said


def test_of_two_tests_side_by_side_only_the_leaky_one_fails(tmp_path, named):
    """And what is still there when both processes have ended fails the run."""
    (tmp_path / "meeting.py").write_text(MEETING)
    (tmp_path / "test_leaky.py").write_text(LEAKY_BESIDE_TIDY)
    (tmp_path / "test_tidy.py").write_text(TIDY_BESIDE_LEAKY)
    said = run_tests(tmp_path, named, "-n", "2", "--dist", "loadfile")
    assert "3 passed, 2 errors" in said, said
    _, of_the_test, of_the_run = re.split("ERROR at teardown of", said)
    for finding in (
        "test_leaky",
        "process: [0-9]+ sleep 100",
        f"file: {named['BLOCK']}",
        f"file: {named['LOCK']}",
        "file: .*/polyarm-leak",
    ):
        assert re.search(finding, of_the_test), said
    for finding in ("test run left behind", named["BLOCK"], named["LOCK"]):
        assert finding in of_the_run, said

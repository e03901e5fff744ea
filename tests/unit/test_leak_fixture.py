"""The leak fixture of tests/conftest.py finds what it is there to find."""

import re
import subprocess
import sys
from pathlib import Path

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

def test_file():
    path = Path(tempfile.mkstemp(prefix="polyarm-leak", dir=tempfile.gettempdir())[1])
    kept.append(path)
"""


def test_the_fixture_finds_every_kind_of_leak_and_kills_leaked_processes(tmp_path):
    hasty = CONFTEST.read_text().replace("GRACE_S = 3.0", "GRACE_S = 0.3")
    (tmp_path / "conftest.py").write_text(hasty)
    (tmp_path / "test_leaky.py").write_text(LEAKY)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "6 passed, 5 errors" in run.stdout, run.stdout
    for finding in (
        "process: [0-9]+ sleep 100",
        "process: [0-9]+ sleep 101",
        r"descriptor: anon_inode:\[eventfd\]",
        "shared-memory mapping: /memfd:polyarm-leak",
        "file: .*/polyarm-leak",
    ):
        assert re.search(finding, run.stdout), run.stdout

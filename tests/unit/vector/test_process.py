"""What processes of ours set up for themselves."""

from __future__ import annotations

import os
import subprocess
import sys

ORPHAN = """
import os, sys
from polyarm.vector import process

process.die_with(int(sys.argv[1]))
print("alive")
"""


def run(parent: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ORPHAN, str(parent)], capture_output=True, text=True, timeout=30
    )


def test_a_process_whose_parent_has_ended_before_it_could_ask_leaves_at_once() -> None:
    late = run(parent=2**22 - 1)
    assert (late.returncode, late.stdout) == (1, "")
    assert run(parent=os.getpid()).stdout == "alive\n"

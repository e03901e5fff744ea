"""Let `import torchvision` work where its compiled operators cannot load.

PyPI's torchvision is built for CUDA. Beside a CPU build of torch its library does not load, and the
import then fails on two operators that nobody here calls (non-maximum suppression). Declaring them
before torchvision is imported is enough for its models and transforms, which LeRobot needs.

Run by `make setup` with the Python to mend. Where torchvision can be imported, or is not installed,
nothing is done.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path

MODULE = "torchvision_operators"

HOOK = '''\
"""Declares the operators of torchvision that its library would bring; see mend_torchvision.py."""

import sys


class BeforeTorchvision:
    """Finds nothing itself; steps aside once torchvision is asked for."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(BeforeTorchvision)
            import torch

            global library
            library = torch.library.Library("torchvision", "DEF")
            arguments = "Tensor dets, Tensor scores, float iou_threshold"
            for operator in ("nms", "qnms"):
                library.define(f"{operator}({arguments}) -> Tensor")
        return None


sys.meta_path.insert(0, BeforeTorchvision)
'''


def main() -> None:
    """Mend this Python's torchvision, if it has one that needs it."""
    if importlib.util.find_spec("torchvision") is None or _imports():
        return
    packages = Path(sysconfig.get_path("purelib"))
    (packages / f"{MODULE}.py").write_text(HOOK)
    (packages / f"{MODULE}.pth").write_text(f"import {MODULE}\n")
    if not _imports():
        raise SystemExit("torchvision cannot be imported, even with its operators declared")


def _imports() -> bool:
    command = [sys.executable, "-c", "import torchvision"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


if __name__ == "__main__":
    main()

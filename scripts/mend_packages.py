"""Mend two packages that LeRobot needs and that do not fit in here as they come.

- PyPI's torchvision is built for CUDA. Beside a CPU build of torch its library does not load, and
  the import then fails on two operators that nobody here calls (non-maximum suppression). Declaring
  them before torchvision is imported is enough for its models and transforms.
- draccus 0.10 installs its own tests as a package named ``tests``, which hides ours.

Run by `make setup` with the Python to mend. What is not installed, or works, is left alone.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

MODULE = "torchvision_operators"

HOOK = '''\
"""Declares the operators of torchvision that its library would bring; see mend_packages.py."""

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


PACKAGES = Path(sysconfig.get_path("purelib"))


def main() -> None:
    """Mend this Python's packages."""
    mend_torchvision()
    remove_tests_of_draccus()


def mend_torchvision() -> None:
    """Declare what its library would bring, if that does not load."""
    if importlib.util.find_spec("torchvision") is None or _imports():
        return
    (PACKAGES / f"{MODULE}.py").write_text(HOOK)
    (PACKAGES / f"{MODULE}.pth").write_text(f"import {MODULE}\n")
    if not _imports():
        raise SystemExit("torchvision cannot be imported, even with its operators declared")


def remove_tests_of_draccus() -> None:
    """Remove the package ``tests``, if it is theirs."""
    if (PACKAGES / "tests" / "draccus_choice_plugins").is_dir():
        shutil.rmtree(PACKAGES / "tests")


def _imports() -> bool:
    command = [sys.executable, "-c", "import torchvision"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


if __name__ == "__main__":
    main()

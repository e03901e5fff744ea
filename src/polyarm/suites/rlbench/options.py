"""What `polyarm setup rlbench` can be told, and how it tells what it did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

VERSION = "4.1.0"
"""Of CoppeliaSim. PyRep calls its library directly, and finds other functions in any other."""

URL = "https://downloads.coppeliarobotics.com/V4_1_0/CoppeliaSim_Edu_V4_1_0_Ubuntu20_04.tar.xz"

PYREP = "git+https://github.com/stepjam/PyRep.git@8f420be8064b1970aae18a9cfbc978dfb15747ef"
RLBENCH = "git+https://github.com/stepjam/RLBench.git@02720bba4c73fe02eb75df946b8791b806028a9d"

Installer = Literal["auto", "pip", "uv"]
State = Literal["there", "done", "missing", "planned"]


@dataclass(frozen=True, slots=True)
class SetupOptions:
    """Options of RLBench's set-up.

    Attributes:
        accept_licences: Accept the licences of CoppeliaSim Edu (educational use) and RLBench
            (non-commercial research) without being asked.
        archive: CoppeliaSim 4.1.0 as an archive (.tar.xz …) that is here already: no download.
        sha256: What the archive's SHA-256 must be. CoppeliaSim's makers publish none: without
            this the download is not verified, but its SHA-256 is shown, kept, and compared with
            that of a later download from the same address.
        url: Where to download CoppeliaSim from.
        prefix: The folder that CoppeliaSim is unpacked to; by default that of the last set-up,
            else one in $POLYARM_CACHE.
        venv: A virtual environment for RLBench; made, for RLBench alone, if it does not exist.
            By default that of the last set-up, else PyRep and RLBench go into the Python that
            runs this.
        pyrep: PyRep's source: a folder, an archive, or an address (git+https://…); by default a
            fixed commit on GitHub. One that is there, wherever from, is kept.
        rlbench: RLBench's source, likewise.
        installer: What installs Python packages; "auto" takes pip if it is there, else uv.
        force: Install CoppeliaSim, PyRep and RLBench even if they are there. A CoppeliaSim of
            your own is checked and kept.
        skip_system_packages: Neither look for system packages nor install them.
        skip_test: Do not run the test episode.
        check: Install nothing; verify everything. Exit code 1 if something is missing.
        dry_run: Change nothing; print every step with its exact commands.
    """

    accept_licences: bool = False
    archive: Path | None = None
    sha256: str = ""
    url: str = URL
    prefix: Path | None = None
    venv: Path | None = None
    pyrep: str | None = None
    rlbench: str | None = None
    installer: Installer = "auto"
    force: bool = False
    skip_system_packages: bool = False
    skip_test: bool = False
    check: bool = False
    dry_run: bool = False

    def expanded(self) -> SetupOptions:
        """The same with ``~`` replaced, which shells leave in ``--venv=~/rlbench``."""
        return replace(
            self,
            archive=self.archive and self.archive.expanduser(),
            prefix=self.prefix and self.prefix.expanduser(),
            venv=self.venv and self.venv.expanduser(),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """How one step of the set-up ended.

    Attributes:
        name: Such as ``"CoppeliaSim"``.
        state: It was ``"there"``, is ``"done"`` now, is ``"missing"`` still, or is ``"planned"``.
        text: What there is, or what to do next.
    """

    name: str
    state: State
    text: str

    def __str__(self) -> str:
        ends = {"there": " (already there)", "done": " (done now)", "missing": "", "planned": ""}
        return (
            f"{self.name}: {'MISSING: ' * (self.state == 'missing')}{self.text}{ends[self.state]}"
        )

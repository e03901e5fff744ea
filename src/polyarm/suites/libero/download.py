"""Downloads LIBERO's assets from the Hugging Face hub, in a process of its own.

huggingface_hub reads its settings when it is imported, and left to itself writes to the user's
home; a process of its own takes the settings from here, whatever its parent has imported.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from polyarm.errors import MissingExtra, StorageError
from polyarm.suites.cache import Progress
from polyarm.suites.libero.hub import DISK_FULL, REFUSED, nbytes_below

REPOSITORY = "lerobot/libero-assets"
"""A dataset on the hub; its layout is that of LIBERO's ``assets`` folder."""

ATTEMPTS = 5
"""How often a download that brought something, and then broke, is taken up again."""

_OFFLINE = "polyarm setup libero --assets <folder or archive>"

# Other places to write to that a user may have set, and that would win over HF_HOME.
_NOT_OURS = (
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_ASSETS_CACHE",
    "HUGGINGFACE_ASSETS_CACHE",
    "HF_XET_CACHE",
)


def download(folder: Path, revision: str, progress: Progress) -> str:
    """Download into a folder, going on from what is there already, and verify every file.

    Returns:
        The commit that was downloaded.

    Raises:
        MissingExtra: huggingface_hub is not installed.
        StorageError: There is no connection, a file is not what the hub says, or the disk is full.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise MissingExtra(
            "downloading LIBERO's assets needs huggingface_hub: pip install 'polyarm[libero]'. "
            f"Without it: {_OFFLINE}"
        )
    for _ in range(ATTEMPTS):
        before = nbytes_below(folder)
        commit, status, errors = _run(folder, revision, progress)
        # Older versions of huggingface_hub give up where a connection breaks for the first time.
        if status in (0, DISK_FULL, REFUSED) or nbytes_below(folder) <= before:
            break
        progress("the connection broke; going on", 0, 0)
    if status == DISK_FULL:
        shutil.rmtree(folder, ignore_errors=True)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    if status != 0:
        raise StorageError(_failure(errors, status, folder))
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return commit


def _run(folder: Path, revision: str, progress: Progress) -> tuple[str, int, str]:
    """The commit, how the process ended, and what it complained about."""
    home = folder.with_name("huggingface")
    command = [sys.executable, "-m", "polyarm.suites.libero.hub", REPOSITORY, revision, str(folder)]
    commit = ""
    try:
        with (
            tempfile.TemporaryFile() as log,
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # its end tells the child that we are gone
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(home),
                start_new_session=True,
            ) as child,
        ):
            try:
                for line in child.stdout or ():
                    message = json.loads(line)
                    commit = message.get("commit", "")
                    progress(message["doing"], message["done"], message["total"])
                status = child.wait()
            finally:
                child.kill()
            log.seek(0)
            return commit, status, log.read().decode(errors="replace")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _environment(home: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    return inherited | {
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        # Over plain HTTP a broken connection goes on from the byte where it broke.
        "HF_HUB_DISABLE_XET": "1",
    }


def _failure(errors: str, status: int, folder: Path) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    reason = lines[-1] if lines else f"the download ended with status {status}"
    endpoint = os.environ.get("HF_ENDPOINT") or "the Hugging Face hub"
    return (
        f"LIBERO's assets ({REPOSITORY}) could not be downloaded from {endpoint}: {reason}. "
        f"Run the same command again to go on from what is in {folder}; without a connection: "
        f"{_OFFLINE}"
    )

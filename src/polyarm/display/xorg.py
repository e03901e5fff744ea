"""Writes the configuration of an X server that renders on NVIDIA GPUs without a screen.

One device and one screen per GPU: ``DISPLAY=:99.1`` renders on the second. The file has a name of
its own, for a server that is started with it: a desktop of the same machine never reads it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polyarm.errors import DisplayError, StorageError, UnknownName

MAX_CLIENTS = (64, 128, 256, 512, 1024, 2048)
"""The numbers of clients that an X server accepts."""

SIZE = (1280, 1024)
"""Of each virtual screen, in pixels: width, height."""

QUERY = ("nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader")
QUERY_TIMEOUT_S = 60.0

FILE = "polyarm-xorg.conf"
FOLDER = Path("/etc/X11")
"""Where X looks for a configuration that is named without its folder."""

_WITH_WARNINGS = (0, 14)
"""Exit codes of nvidia-smi with an answer; 14: the infoROM of a GPU is corrupted."""

_ADDRESS = r"(?:([0-9a-f]+):)?([0-9a-f]+):([0-9a-f]+)\.([0-7])"

_HEAD = "# Written by `polyarm setup xorg`: NVIDIA GPUs without a screen."

_CLIENTS = """\
Section "ServerFlags"
    Option "MaxClients" "{number}"
EndSection
"""

_DEVICE = """\
Section "Device"
    Identifier "Device{index}"
    Driver     "nvidia"
    VendorName "NVIDIA Corporation"
    BusID      "{bus}"
EndSection

Section "Screen"
    Identifier   "Screen{index}"
    Device       "Device{index}"
    DefaultDepth 24
    Option       "AllowEmptyInitialConfiguration" "True"
{unused}    SubSection "Display"
        Depth   24
        Virtual {width} {height}
    EndSubSection
EndSection
"""

# The driver takes hold of a connected monitor unless told otherwise; GPUs that have no outputs at
# all refuse the option.
_UNUSED = '    Option       "UseDisplayDevice" "None"\n'

CONTAINER = """\
This is a container. An X server needs the host's consoles and the driver's X module, so:
  1. on the host:           polyarm setup xorg --write, then start X as below
  2. start the container:   docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all \\
                              -v /tmp/.X11-unix:/tmp/.X11-unix --ipc=host -e DISPLAY=:99 …
  3. on the host, let it in: DISPLAY=:99 xhost +local:
or go without a GPU for rendering: display="xvfb" needs nothing but the package xvfb."""

WRAPPER = """\
allowed_users=anybody
needs_root_rights=yes
"""
"""What ``Xwrapper.config`` must say for users other than root to start the server."""


@dataclass(frozen=True, slots=True)
class XorgOptions:
    """Options of the X server's set-up.

    Attributes:
        write: Write the file. Without it it is printed, and nothing is changed.
        folder: Where to write it. X takes a file elsewhere than in /etc/X11 from root alone.
        headless_gpu: The GPUs have no display outputs, as those of data centres.
        max_clients: How many connections the server takes; each simulator needs a few.
        display_number: Of the display in the commands that are shown, 99 for ":99".
    """

    write: bool = False
    folder: Path = FOLDER
    headless_gpu: bool = False
    max_clients: int = 2048
    display_number: int = 99


def files(options: XorgOptions) -> dict[Path, str]:
    """The configuration file and what belongs into it.

    Raises:
        DisplayError: No GPU is found.
        UnknownName: An X server does not accept that number of clients.
    """
    if options.max_clients not in MAX_CLIENTS:
        raise UnknownName("number of clients", str(options.max_clients), map(str, MAX_CLIENTS))
    buses = [bus_id(address) for address in gpu_addresses()]
    return {options.folder.expanduser() / FILE: configuration(buses, options)}


def configuration(buses: Sequence[str], options: XorgOptions) -> str:
    """The text of the file.

    Args:
        buses: A bus id for each GPU, as `bus_id` returns it.
        options: Whether the GPUs have outputs, and how many clients there may be.
    """
    width, height = SIZE
    unused = "" if options.headless_gpu else _UNUSED
    places = ["0 0", *(f'RightOf "Screen{index}"' for index in range(len(buses) - 1))]
    screens = [f'    Screen {index} "Screen{index}" {place}' for index, place in enumerate(places)]
    layout = ['Section "ServerLayout"', '    Identifier "polyarm"', *screens, "EndSection\n"]
    devices = [
        _DEVICE.format(index=index, bus=bus, unused=unused, width=width, height=height)
        for index, bus in enumerate(buses)
    ]
    clients = _CLIENTS.format(number=options.max_clients)
    return "\n".join([_HEAD, clients, "\n".join(layout), *devices])


def bus_id(address: str) -> str:
    """A GPU's address in the form that X wants, in decimal digits.

    Args:
        address: As ``nvidia-smi`` writes it, in hexadecimal: ``"00000000:1B:00.0"``.

    Returns:
        Such as ``"PCI:27:0:0"``; ``"PCI:27@1:0:0"`` in PCI domain 1.

    Raises:
        DisplayError: This is no address.
    """
    digits = re.fullmatch(_ADDRESS, address.lower())
    if digits is None:
        raise DisplayError(f"nvidia-smi tells {address!r}, which is no PCI address of a GPU")
    domain, bus, device, function = (int(part or "0", 16) for part in digits.groups())
    return f"PCI:{bus}{f'@{domain}' if domain else ''}:{device}:{function}"


def gpu_addresses() -> list[str]:
    """Addresses of this machine's NVIDIA GPUs.

    Raises:
        DisplayError: None is found.
    """
    way_out = 'Without a GPU use display="xvfb", which renders in software.'
    if shutil.which(QUERY[0]) is None:
        raise DisplayError(
            f"no NVIDIA GPU is found: there is no nvidia-smi here. Install the driver (in a "
            f"container: --gpus all). {way_out}"
        )
    try:
        run = subprocess.run(
            QUERY,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DisplayError(
            f"{shlex.join(QUERY)} did not answer within {QUERY_TIMEOUT_S:.0f} s: the driver hangs. "
            f"{way_out}"
        ) from error
    # Among them may be warnings, such as "WARNING: infoROM is corrupted at gpu 0000:C2:00.0".
    lines = [line.strip() for line in run.stdout.splitlines()]
    found = [line for line in lines if re.fullmatch(_ADDRESS, line.lower())]
    if run.returncode not in _WITH_WARNINGS or not found:
        said = (run.stderr or run.stdout).strip() or "nothing"
        raise DisplayError(
            f"no NVIDIA GPU is found: {shlex.join(QUERY)} ended with status {run.returncode} and "
            f"said: {said}. {way_out}"
        )
    return found


def write(texts: dict[Path, str]) -> list[str]:
    """Write the files, keeping a copy of each that is replaced; returns what was done.

    Raises:
        StorageError: A file cannot be written.
    """
    lines = []
    for file, text in texts.items():
        try:
            lines.append(_write(file, text))
        except OSError as error:
            raise StorageError(
                f"{file} cannot be written ({error.strerror}). Write it as root: "
                f'sudo env PATH="$PATH" polyarm setup xorg --write; or elsewhere, with --folder'
            ) from error
    return lines


def commands(options: XorgOptions) -> list[str]:
    """What starts the server with these files, and tries it out."""
    display = f":{options.display_number}"
    folder = options.folder.expanduser()
    config = FILE if folder == FOLDER else shlex.quote(str(folder.absolute() / FILE))
    return [
        f"sudo nohup X {display} -config {config} > /tmp/X{options.display_number}.log 2>&1 &",
        f"DISPLAY={display} xdpyinfo | grep -A1 'number of screens'",
        f"polyarm bench --task rlbench/reach_target --cameras front --display external{display}",
    ]


def in_container() -> bool:
    """Whether this seems to be a container."""
    if any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")):
        return True
    control = Path("/proc/1/cgroup")
    names = "docker|containerd|kubepods|lxc|podman"
    return control.is_file() and re.search(names, control.read_text()) is not None


def _write(file: Path, text: str) -> str:
    old = file.read_text(errors="replace") if file.exists() else None
    if old == text:
        return f"{file}: already there"
    file.parent.mkdir(parents=True, exist_ok=True)
    note = ""
    if old is not None:
        backup = _backup_name(file)
        shutil.copy2(file, backup)
        note = f" (what was there is now {backup})"
    # X must never read half a file. As `suites.cache.write_whole`, which is not for this layer.
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".", delete=False) as draft:
        try:
            draft.write(text)
            draft.flush()
            os.fsync(draft.fileno())
            Path(draft.name).chmod(0o644)
            Path(draft.name).rename(file)
        except BaseException:
            Path(draft.name).unlink(missing_ok=True)
            raise
    return f"{file}: written{note}"


def _backup_name(file: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = [f"{file.name}.{stamp}.backup", *(f"{file.name}.{stamp}-{n}.backup" for n in range(99))]
    return next(file.with_name(name) for name in names if not file.with_name(name).exists())

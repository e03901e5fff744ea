"""The X server's configuration, from what nvidia-smi says to files that replace none for good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from polyarm.display import xorg
from polyarm.display.xorg import XorgOptions, bus_id, configuration
from polyarm.errors import DisplayError, StorageError, UnknownName


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts an nvidia-smi on a path that is otherwise empty."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(script: str) -> None:
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "nvidia-smi").chmod(0o755)

    return make


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("00000000:00:06.0", "PCI:0:6:0"),  # as on an H200
        ("00000000:1B:00.0", "PCI:27:0:0"),
        ("00000001:C1:1F.3", "PCI:193@1:31:3"),
        ("0000:0a:00.0", "PCI:10:0:0"),
        ("3b:00.0", "PCI:59:0:0"),
    ],
)
def test_addresses_are_told_in_decimal_digits(address: str, expected: str) -> None:
    assert bus_id(address) == expected


def test_what_is_no_address_is_quoted() -> None:
    with pytest.raises(DisplayError, match=r"\[Not Supported\].*no PCI address"):
        bus_id("[Not Supported]")


def test_each_gpu_has_a_device_and_a_screen_in_one_layout() -> None:
    text = configuration(["PCI:27:0:0", "PCI:28:0:0", "PCI:59:0:0"], XorgOptions())
    assert text.count('Section "Device"') == text.count('Section "Screen"') == 3
    assert text.count("EndSection") == 8
    assert text.count("Virtual 1280 1024") == 3
    assert text.count('"UseDisplayDevice" "None"') == 3
    for line in (
        'Screen 0 "Screen0" 0 0',
        'Screen 1 "Screen1" RightOf "Screen0"',
        'Screen 2 "Screen2" RightOf "Screen1"',
        'BusID      "PCI:59:0:0"',
    ):
        assert line in text


def test_gpus_without_outputs_do_not_know_the_display_device() -> None:
    text = configuration(["PCI:0:6:0"], XorgOptions(headless_gpu=True))
    assert "UseDisplayDevice" not in text
    assert '"AllowEmptyInitialConfiguration" "True"' in text


def test_files_come_from_the_gpus_that_are_found(
    tmp_path: Path, nvidia_smi: Callable[[str], None]
) -> None:
    nvidia_smi('[ "$*" = "--query-gpu=pci.bus_id --format=csv,noheader" ] && echo 00000000:1B:00.0')
    texts = xorg.files(XorgOptions(folder=tmp_path / "X11", max_clients=512))
    (file,) = texts  # and not xorg.conf, which every server of the machine would read
    assert file == tmp_path / "X11" / "polyarm-xorg.conf"
    assert 'BusID      "PCI:27:0:0"' in texts[file]
    assert 'Section "ServerFlags"\n    Option "MaxClients" "512"\nEndSection' in texts[file]
    assert not (tmp_path / "X11").exists()


@pytest.mark.parametrize("status", [0, 14])
def test_warnings_of_the_driver_are_no_gpus(status: int, nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi(
        "echo WARNING: infoROM is corrupted at gpu 0000:C2:00.0; echo 00000000:C2:00.0\n"
        f"echo; exit {status}"
    )
    assert xorg.gpu_addresses() == ["00000000:C2:00.0"]


@pytest.mark.parametrize("script", ["", "echo No devices were found; exit 6", "exit 0"])
def test_without_a_gpu_the_other_way_is_named(
    script: str, nvidia_smi: Callable[[str], None]
) -> None:
    if script:
        nvidia_smi(script)
    with pytest.raises(DisplayError, match=r'no NVIDIA GPU is found.*display="xvfb"') as told:
        xorg.files(XorgOptions())
    assert "No devices" in str(told.value) or "No devices" not in script


def test_a_driver_that_hangs_is_told(
    nvidia_smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_smi("exec /bin/sleep 30")
    monkeypatch.setattr(xorg, "QUERY_TIMEOUT_S", 0.2)
    with pytest.raises(DisplayError, match="the driver hangs"):
        xorg.files(XorgOptions())


def test_a_number_of_clients_that_x_refuses_is_refused_here() -> None:
    with pytest.raises(UnknownName, match=r"'2000'.*did you mean '2048'"):
        xorg.files(XorgOptions(max_clients=2000))


def test_what_is_replaced_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "X11" / "xorg.conf"
    assert xorg.write({file: "one"}) == [f"{file}: written"]
    assert xorg.write({file: "one"}) == [f"{file}: already there"]
    assert "what was there is now" in xorg.write({file: "two"})[0]
    xorg.write({file: "three"})
    assert file.read_text() == "three"
    backups = sorted(path.read_text() for path in file.parent.glob("*.backup"))
    assert backups == ["one", "two"]
    assert len(list(file.parent.iterdir())) == 3


def test_a_folder_that_cannot_be_written_to_is_told_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "X11").touch()
    with pytest.raises(StorageError, match=r"sudo .*polyarm setup xorg --write.*--folder"):
        xorg.write({tmp_path / "X11" / "xorg.conf": ""})


def test_commands_name_the_display_and_another_folder() -> None:
    start, *_ = xorg.commands(XorgOptions())
    assert start.startswith("sudo nohup X :99 -config polyarm-xorg.conf >")
    start, *_, last = xorg.commands(XorgOptions(folder=Path("/opt/my X"), display_number=7))
    assert "X :7 -config '/opt/my X/polyarm-xorg.conf' >" in start
    assert "--display external:7" in last

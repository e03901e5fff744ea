from pathlib import Path

import pytest

from polyarm.doctor import Case
from polyarm.doctor import gpu as gpus

H200 = "0, NVIDIA H200, 580.159.04, 143771, 143156"


def only(findings):
    [finding] = findings
    return finding


@pytest.mark.usefixtures("gpu")
def test_a_gpu_is_shown_with_driver_and_memory():
    finding = only(gpus.check(Case()))
    assert finding.status == "ok"
    assert finding.text == "NVIDIA H200, driver 580.159.04, 140 of 140 GiB free"


def test_a_gpu_that_does_not_tell_its_memory_is_shown(program):
    program("nvidia-smi", "echo '0, NVIDIA Thor, 580.1, [N/A], [N/A]'")
    assert only(gpus.check(Case())).status == "ok"


def test_a_driver_that_fails_is_a_warning_with_its_words(program):
    program(
        "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"
    )
    finding = only(gpus.check(Case()))
    assert finding.status == "warning"
    assert "version mismatch" in finding.text
    assert "--gpus all" in finding.fix


def test_a_driver_that_hangs_is_given_up(program, monkeypatch):
    monkeypatch.setattr(gpus, "TIMEOUT_S", 0.2)
    program("nvidia-smi", "sleep 60")
    assert "no answer" in only(gpus.check(Case())).text


def test_no_gpu_is_a_hint(no_gpu):
    finding = only(gpus.check(Case()))
    assert finding.status == "hint"
    assert not Case().gpus


@pytest.mark.usefixtures("no_gpu")
def test_a_driver_without_its_program_is_a_container_without_it(monkeypatch, tmp_path):
    version = tmp_path / "version"
    version.touch()
    monkeypatch.setattr(gpus, "_DRIVER", Path(version))
    finding = only(gpus.check(Case()))
    assert finding.status == "warning"
    assert "NVIDIA_DRIVER_CAPABILITIES" in finding.fix


@pytest.mark.parametrize("status", [0, 14])
def test_warnings_between_the_gpus_are_left_out(status, program):
    warning = "WARNING: infoROM is corrupted at gpu 0000:C2:00.0"
    program("nvidia-smi", f"echo '{warning}'\necho '{H200}'\necho '{warning}'\nexit {status}")
    finding = only(gpus.check(Case()))
    assert (finding.name, finding.status) == ("GPU 0", "ok")

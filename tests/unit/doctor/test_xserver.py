"""Xvfb, screens of a server of the user's, and its room for clients."""

import shutil
import subprocess
import sys

import pytest

from polyarm.display import xvfb
from polyarm.doctor import Case, xserver
from polyarm.doctor.gpu import Answer, Gpu

GONE = (1, "", "no X server answers at DISPLAY=':99.2'")


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch, tmp_path, no_gpu):
    monkeypatch.setattr(xserver, "_CONFIGURATION", (tmp_path / "xorg.conf", tmp_path / "conf.d"))
    monkeypatch.setattr(xserver, "_LOCKS", tmp_path)


@pytest.fixture
def serves(monkeypatch):
    """Says what runs as the server, instead of looking through processes."""

    def replace(*words):
        monkeypatch.setattr(xserver, "_server", lambda number: list(words))

    return replace


def test_xvfb_is_found_on_the_path(program):
    path = program("Xvfb", "exit 0")
    [finding] = xserver.check_xvfb(Case("rlbench"))
    assert (finding.status, finding.text) == ("ok", str(path))


@pytest.mark.usefixtures("no_programs")
def test_without_xvfb_rlbench_cannot_render(monkeypatch):
    [finding] = xserver.check_xvfb(Case("rlbench"))
    assert finding.status == "missing"
    assert finding.fix.endswith("apt-get install -y xvfb")
    monkeypatch.setenv("RLBENCH_BASE_DISPLAY", ":99")
    [finding] = xserver.check_xvfb(Case("rlbench"))
    assert finding.status == "hint"


def test_no_server_is_as_it_should_be():
    [finding] = xserver.check_screens(Case("rlbench"))
    assert finding.status == "ok"
    assert list(xserver.check_screens(Case())) == []


def test_each_screen_is_probed_until_there_is_none(child_says, monkeypatch):
    monkeypatch.setenv("RLBENCH_BASE_DISPLAY", ":99")
    monkeypatch.setenv("LOCAL_RANK", "1")
    asked = child_says((0, ":99.0 on NVIDIA A", ""), (0, ":99.1 on NVIDIA B", ""), GONE)
    first, second, clients = xserver.check_screens(Case("rlbench", 4))
    assert asked == [(":99.0",), (":99.1",), (":99.2",)]
    assert first.name == "screen :99.0"
    assert "NVIDIA B (this rank's)" in second.text
    assert clients.status == "ok"


def test_a_screen_for_each_gpu_or_the_others_cannot_render(child_says, monkeypatch):
    two = (Gpu(0, "A", "580.1", 1, 1), Gpu(1, "B", "580.1", 1, 1))
    monkeypatch.setattr("polyarm.doctor.gpu.query", lambda: Answer(two))
    monkeypatch.setenv("RLBENCH_BASE_DISPLAY", ":99")
    child_says((0, ":99.0 on A", ""), GONE)
    _, finding, _ = xserver.check_screens(Case("rlbench", 1))
    assert finding.status == "warning"
    assert "1 for 2 GPUs" in finding.text
    assert "polyarm setup xorg" in finding.fix


def test_a_server_that_does_not_answer_is_broken(child_says, monkeypatch):
    monkeypatch.setenv("RLBENCH_BASE_DISPLAY", ":99")
    child_says(GONE)
    finding, _ = xserver.check_screens(Case("rlbench", 1))
    assert finding.status == "broken"
    assert "no X server answers" in finding.text


def test_a_screen_without_glx_is_broken_whichever_it_is(child_says, monkeypatch):
    monkeypatch.setenv("RLBENCH_BASE_DISPLAY", ":99")
    child_says((0, ":99.0 on A", ""), (1, "", "the X server gives no OpenGL context (no GLX)"))
    _, finding, _ = xserver.check_screens(Case("rlbench", 1))
    assert (finding.name, finding.status) == ("screen :99.1", "broken")


def test_a_display_as_it_is_has_room_for_its_clients_or_not(serves, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":3.0")
    serves("Xorg", ":3")
    [finding] = xserver.check_screens(Case("rlbench", 1))
    assert (finding.name, finding.status) == ("X MaxClients", "ok")
    [finding] = xserver.check_screens(Case("rlbench", 999))
    assert finding.status == "warning"  # workers start an Xvfb each, unless told otherwise
    monkeypatch.setenv("RLBENCH_PER_PROCESS_XVFB", "0")
    [finding] = xserver.check_screens(Case("rlbench", 999))
    assert finding.status == "broken"


def test_another_machine_s_server_keeps_its_limit_to_itself(monkeypatch):
    monkeypatch.setenv("DISPLAY", "desk:0")
    assert list(xserver.check_screens(Case("rlbench", 1))) == []


def test_more_workers_than_the_server_takes_are_broken(child_says, serves, monkeypatch):
    monkeypatch.setenv("RLBENCH_BASE_DISPLAY", ":99")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    serves("/usr/lib/xorg/Xorg", ":99")
    child_says((0, ":99.0 on A", ""), GONE)
    _, finding = xserver.check_screens(Case("rlbench", 64))
    assert finding.status == "broken"
    assert finding.text.startswith("256 (the default of Xorg)")
    assert "about 512 for 256 workers" in finding.text
    assert "--max-clients 2048" in finding.fix


def test_a_server_that_cannot_be_seen_is_only_a_warning(child_says, serves, monkeypatch):
    monkeypatch.setenv("RLBENCH_BASE_DISPLAY", ":99")
    serves()
    child_says((0, ":99.0 on A", ""), GONE)
    _, finding = xserver.check_screens(Case("rlbench", 256))
    assert finding.status == "warning"
    assert "cannot be seen from here" in finding.text


def test_the_limit_is_read_from_xorg_s_configuration(serves):
    serves("X", ":99")
    main, folder = xserver._CONFIGURATION
    main.write_text('Section "ServerFlags"\n  Option "MaxClients" "512"\nEndSection\n')
    assert xserver.max_clients(99) == (512, str(main))
    own = main.with_name("polyarm-xorg.conf")
    own.write_text('Section "ServerFlags"\n  Option "MaxClients" "1024"\nEndSection\n')
    assert xserver.max_clients(99) == (512, str(main))
    serves("X", ":99", "-config", own.name)
    assert xserver.max_clients(99) == (1024, str(own))
    serves("X", ":99", "-config", str(own))
    assert xserver.max_clients(99) == (1024, str(own))
    own.write_text("")
    folder.mkdir()
    (folder / "99-maxclients.conf").write_text('# Option "MaxClients" "64"\n')
    assert xserver.max_clients(99)[0] == 256
    (folder / "99-maxclients.conf").write_text('\tOption "MaxClients" "2048"\n')
    assert xserver.max_clients(99)[0] == 2048


@pytest.mark.parametrize("program", ["Xvfb", "/usr/bin/Xvnc"])
def test_servers_without_a_configuration_have_their_arguments_alone(program, serves, monkeypatch):
    main, _ = xserver._CONFIGURATION
    main.write_text('Option "MaxClients" "2048"\n')
    name = program.rpartition("/")[2]
    serves(program, ":99")
    assert xserver.max_clients(99) == (256, f"the default of {name}")
    monkeypatch.setenv("DISPLAY", ":99")
    [finding] = xserver.check_screens(Case("rlbench", 999))
    assert f"{name} :99 -maxclients 2048" in finding.fix
    serves(program, ":99", "-maxclients", "512")
    assert xserver.max_clients(99) == (512, "the server's -maxclients")


def test_a_server_is_found_by_its_lock_though_it_does_not_name_its_display(tmp_path):
    words = ["Xorg", "-c", "import time; print(flush=True); time.sleep(60)", "vt7"]
    command = [*words, "-maxclients", "1024"]
    with subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            assert xserver.max_clients(7776)[0] == 256
            (tmp_path / ".X7776-lock").write_text(f"{server.pid:>10}\n")
            assert xserver.max_clients(7776)[0] == 1024
        finally:
            server.kill()


def test_a_running_server_s_own_argument_counts_before_its_configuration():
    words = ["Xorg", "-c", "import time; print(flush=True); time.sleep(60)", ":7777"]
    command = [*words, "-maxclients", "1024"]
    with subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            assert xserver.max_clients(7777) == (1024, "the server's -maxclients")
        finally:
            server.kill()


@pytest.mark.skipif(shutil.which("Xvfb") is None, reason="no Xvfb: apt-get install xvfb")
def test_a_real_server_s_screen_and_clients_are_found(monkeypatch):
    server = xvfb.start()
    try:
        monkeypatch.setenv("POLYARM_BASE_DISPLAY", server.name)
        screen, clients = xserver.check_screens(Case("rlbench", 1))
    finally:
        server.close()
    assert screen.status == "ok"
    assert screen.name == f"screen {server.name}.0"
    assert " on " in screen.text
    assert clients.status == "ok"


def test_connections_are_counted_by_the_server_s_ends(monkeypatch, tmp_path):
    table = tmp_path / "unix"
    head = "Num RefCount Protocol Flags Type St Inode Path\n"
    row = "0: 2 0 0 0001 {} 1 {}\n"
    listening = row.format("01", "@/tmp/.X11-unix/X9")
    two = 2 * row.format("03", "@/tmp/.X11-unix/X9")
    other = row.format("03", "/tmp/.X11-unix/X99")
    table.write_text(head + listening + two + other + "0: 2 0 0 0001 03 1\n")
    monkeypatch.setattr(xserver, "_UNIX_SOCKETS", table)
    assert xserver._connections(9) == 2

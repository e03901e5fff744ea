"""The download of CoppeliaSim: goes on where it broke, and is what it was last time."""

from __future__ import annotations

import hashlib
import re
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from toy_coppeliasim import FILES, TOP, empty_cache, pack, packed, quiet

from polyarm.errors import StorageError
from polyarm.suites.rlbench import download, install
from polyarm.suites.rlbench.options import SetupOptions


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return packed(tmp_path)


def put(options: SetupOptions) -> Path:
    return install.install_coppeliasim(options, quiet)[0]


class Server:
    """Serves one file with ranges, and breaks off, hangs or changes it on demand."""

    def __init__(self, data: bytes) -> None:
        self.data, self.ranges = data, list[str]()
        self.break_at: list[int] = []
        self.hang_at = 0
        self.hanging, self.released = threading.Event(), threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, self))
        self.server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self.server.server_port}/files/{TOP}.tar.xz"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Handler(BaseHTTPRequestHandler):
    def __init__(self, state: Server, *rest: Any) -> None:
        self.state = state
        super().__init__(*rest)

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        data, state = self.state.data, self.state
        if "missing" in self.path:
            self.send_error(404)
            return
        tag = f'"{hashlib.sha256(data).hexdigest()}"'
        state.ranges.append(self.headers.get("Range", ""))
        same = self.headers.get("If-Range", tag) == tag
        start = int((re.findall(r"bytes=(\d+)-", state.ranges[-1]) or [0])[0]) if same else 0
        if start >= len(data):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", tag)
        self.end_headers()
        end = state.break_at.pop(0) if state.break_at else len(data)
        if state.hang_at:
            end, state.hang_at = state.hang_at, 0
            self.wfile.write(data[start:end])
            state.hanging.set()
            state.released.wait(30)
        else:
            self.wfile.write(data[start:end])


@pytest.fixture
def server(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    noise = hashlib.shake_128(b"noise").hexdigest(200_000)
    packed = pack(tmp_path / "served.tar.xz", FILES | {"libNoise.so": noise})
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    served = Server(packed.read_bytes())
    try:
        yield served
    finally:
        served.close()


def test_a_download_that_breaks_goes_on_from_that_byte(server: Server, cache: Path) -> None:
    server.break_at = [100_000, 150_000]
    told: list[tuple[str, int, int]] = []
    options = SetupOptions(url=server.url)
    root, step = install.install_coppeliasim(options, lambda *now: told.append(now))
    assert server.ranges == ["", "bytes=100000-", "bytes=150000-"]
    assert hashlib.sha256(server.data).hexdigest() in step.text
    size = len(server.data)
    assert ("downloading CoppeliaSim", size, size) in told
    assert any(doing == "unpacking" for doing, *_ in told)
    assert not list((cache / "download").iterdir())
    assert (root / "libNoise.so").exists()


@pytest.mark.parametrize(("more", "requests"), [(b"", 1), (b"too much", 2)])
def test_a_part_that_is_complete_is_used_and_one_that_is_too_long_is_not(
    more: bytes, requests: int, server: Server, cache: Path
) -> None:
    part = cache / "download" / f"{TOP}.tar.xz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(server.data + more)
    tag = hashlib.sha256(server.data).hexdigest()
    part.with_name(f"{part.name}.mark").write_text(f'"{tag}"')
    put(SetupOptions(url=server.url))
    assert len(server.ranges) == requests


def test_a_connection_that_breaks_inside_tls_is_taken_up_again(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, broken = download._copy, [ssl.SSLError("bad record mac")]

    def copy_or_break(answer: Any, out: Any, total: int, progress: Any) -> None:
        if broken:
            out.write(answer.read(1000))
            out.flush()
            raise broken.pop()
        copy(answer, out, total, progress)

    monkeypatch.setattr(download, "_copy", copy_or_break)
    put(SetupOptions(url=server.url))
    assert server.ranges == ["", "bytes=1000-"]


def test_a_download_is_what_it_was_last_time_or_what_was_asked_for(
    server: Server, cache: Path, archive: Path
) -> None:
    options = SetupOptions(url=server.url, force=True)
    _, step = install.install_coppeliasim(options, quiet)
    assert "not verified: no checksum is published" in step.text
    assert "none is published" in install.plan(options)[1].text
    put(options)
    before, server.data = hashlib.sha256(server.data).hexdigest(), archive.read_bytes()
    now = hashlib.sha256(server.data).hexdigest()
    with pytest.raises(StorageError, match=f"is {now}, and was {before}.*--sha256 {now}"):
        put(options)
    _, step = install.install_coppeliasim(replace(options, sha256=now), quiet)
    assert f"sha256 {now}, as asked for" in step.text
    assert len(server.ranges) == 3  # what was not wanted at first was kept
    put(options)


def test_a_wrong_checksum_keeps_the_download(server: Server, cache: Path) -> None:
    with pytest.raises(StorageError, match=r"Correct --sha256, or remove .*download"):
        put(SetupOptions(url=server.url, sha256="0" * 64))
    put(SetupOptions(url=server.url, sha256=hashlib.sha256(server.data).hexdigest()))
    assert len(server.ranges) == 1


def test_a_killed_download_goes_on_with_the_next_command(server: Server, cache: Path) -> None:
    server.hang_at = 131_072
    code = (
        "import sys\nfrom polyarm.suites.rlbench.install import install_coppeliasim\n"
        "from polyarm.suites.rlbench.options import SetupOptions\n"
        "install_coppeliasim(SetupOptions(url=sys.argv[1]), lambda *_: None)"
    )
    part = cache / "download" / f"{TOP}.tar.xz.part"
    with subprocess.Popen([sys.executable, "-c", code, server.url]) as child:
        assert server.hanging.wait(30)
        while not part.exists() or part.stat().st_size < 65_536:
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
    there = part.stat().st_size
    put(SetupOptions(url=server.url))
    assert server.ranges == ["", f"bytes={there}-"]
    assert not (cache / "CoppeliaSim").with_suffix(".part").exists()


def test_a_file_that_changed_meanwhile_is_fetched_anew(
    server: Server, archive: Path, cache: Path
) -> None:
    server.break_at = [100_000, 100_000]
    part = cache / "download" / f"{TOP}.tar.xz.part"
    with pytest.raises(StorageError, match=r"ended after 100,000.*same command.*--archive"):
        put(SetupOptions(url=server.url))
    assert part.stat().st_size == 100_000
    server.data = archive.read_bytes()
    root, step = install.install_coppeliasim(SetupOptions(url=server.url), quiet)
    assert hashlib.sha256(server.data).hexdigest() in step.text
    assert not (root / "libNoise.so").exists()


def test_a_download_that_cannot_be_used_is_not_used_again(server: Server, cache: Path) -> None:
    good, server.data = server.data, b"not an archive"
    with pytest.raises(StorageError, match="no archive"):
        put(SetupOptions(url=server.url))
    assert not list((cache / "download").glob("*.xz"))
    server.data = good
    put(SetupOptions(url=server.url))


def test_without_a_connection_or_a_file_the_other_way_is_named(server: Server) -> None:
    with pytest.raises(StorageError, match=r"404.*--archive"):
        put(SetupOptions(url=server.url.replace("files", "missing")))
    with pytest.raises(StorageError, match=r"refused.*--archive"):
        put(SetupOptions(url="http://127.0.0.1:9/none.tar.xz"))


def test_a_download_that_fills_the_disk_gives_the_space_back(
    server: Server, tmp_path: Path, small_disk: Any
) -> None:
    with small_disk(tmp_path / "disk", "100k") as disk:
        with pytest.raises(OSError, match="No space left"):
            download.download(server.url, disk / "file", quiet, "")
        assert not list(disk.iterdir())

"""The download, from a server on this machine that breaks off, lies and hangs like no hub."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from polyarm.errors import MissingExtra, StorageError
from polyarm.suites.libero import download
from polyarm.suites.libero.assets import check_assets, find_assets
from polyarm.suites.libero.hub import CHUNK_NBYTES
from polyarm.suites.libero.install import install_assets

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("huggingface_hub") is None,
    reason="huggingface_hub is missing: pip install 'polyarm[libero]'",
)

MakeAssets = Callable[[Path], Path]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
BIG = "textures/wood.png"
API = f"/api/datasets/{download.REPOSITORY}"
FILES = f"/datasets/{download.REPOSITORY}/resolve/{COMMIT}/"


def quiet(doing: str, done: int, total: int) -> None: ...


def contents(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


class Hub:
    """Serves a folder as the hub serves a dataset; images go through LFS, as on the hub."""

    def __init__(self, folder: Path) -> None:
        self.files = contents(folder)
        self.requests: list[tuple[str, str, str]] = []  # method, path, range
        self.sent: Counter[str] = Counter()
        self.break_off: dict[str, int] = {}  # file → bytes after which the connection breaks, once
        self.corrupt: dict[str, int] = {}  # file → how often it is served wrong
        self.hang_at = ""
        self.hanging, self.released = threading.Event(), threading.Event()
        self.extra_name = ""
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, self))
        self.server.daemon_threads = False
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def gets(self, name: str) -> list[str]:
        """The ranges of all requests for a file's content."""
        return [
            span for method, path, span in self.requests if (method, path) == ("GET", FILES + name)
        ]

    def facts(self, name: str) -> dict[str, Any]:
        data = self.files[name]
        git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        if not name.endswith(".png"):
            return {"size": len(data), "oid": git}
        sha = hashlib.sha256(data).hexdigest()
        return {
            "size": len(data),
            "oid": git,
            "lfs": {"sha256": sha, "oid": sha, "size": len(data), "pointerSize": 130},
        }

    def info(self) -> dict[str, Any]:
        siblings = [
            {"rfilename": name, "blobId": (facts := self.facts(name)).pop("oid"), **facts}
            for name in self.files
        ]
        if self.extra_name:
            siblings.append({"rfilename": self.extra_name, "size": 1, "blobId": "0" * 40})
        return {"id": download.REPOSITORY, "sha": COMMIT, "siblings": siblings}

    def tree(self) -> list[dict[str, Any]]:
        return [{"type": "file", "path": name, **self.facts(name)} for name in self.files]


class Handler(BaseHTTPRequestHandler):
    """The requests that huggingface_hub makes."""

    protocol_version = "HTTP/1.1"

    def __init__(self, hub: Hub, *rest: Any) -> None:
        self.hub = hub
        super().__init__(*rest)

    def log_message(self, *_: Any) -> None: ...

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range", "")))
        if path in (f"{API}/revision/main", f"{API}/revision/{COMMIT}"):
            self.reply(json.dumps(self.hub.info()).encode())
        elif path == f"{API}/tree/{COMMIT}":
            self.reply(json.dumps(self.hub.tree()).encode())
        elif path.startswith(FILES) and path.removeprefix(FILES) in self.hub.files:
            self.reply_file(path.removeprefix(FILES), body=body)
        else:
            self.send_error(404)

    def reply(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def reply_file(self, name: str, *, body: bool) -> None:
        data, facts = self.hub.files[name], self.hub.facts(name)
        start = int((re.findall(r"bytes=(\d+)-", self.headers.get("Range", "")) or [0])[0])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("X-Repo-Commit", COMMIT)
        etag = facts["lfs"]["sha256"] if "lfs" in facts else facts["oid"]
        self.send_header("ETag", f'"{etag}"')
        self.end_headers()
        if body:
            self.send_content(name, data, start)

    def send_content(self, name: str, data: bytes, start: int) -> None:
        hub = self.hub
        if hub.corrupt.get(name, 0) > 0:
            hub.corrupt[name] -= 1
            data = b"!" + data[1:]
        end = hub.break_off.pop(name, len(data))
        if hangs := name == hub.hang_at:
            hub.hang_at, end = "", len(data) // 2
        self.wfile.write(data[start:end])
        hub.sent[name] += end - start
        if hangs:
            hub.hanging.set()
            hub.released.wait(30)
        self.close_connection = end < len(data)


@pytest.fixture
def hub(
    tmp_path: Path, cache: Path, make_assets: MakeAssets, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hub]:
    folder = make_assets(tmp_path / "hub")
    (folder / "README.md").write_text("not an asset")
    (folder / ".gitattributes").write_text("*.png filter=lfs")
    (folder / "textures" / "wood.png").write_bytes(os.urandom(400_000))
    served = Hub(folder)
    monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HOME", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    try:
        yield served
    finally:
        served.close()


def assets_of(hub: Hub) -> dict[str, bytes]:
    return {
        name: data
        for name, data in hub.files.items()
        if name not in ("README.md", ".gitattributes")
    }


def test_the_hub_s_files_are_installed_verified_and_nothing_else_is_touched(
    hub: Hub, tmp_path: Path, cache: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    code = (
        "from polyarm.suites.libero.install import install_assets\n"
        "install_assets(None, lambda *_: None)"
    )
    variables = {"HF_HUB_CACHE": str(elsewhere), "HF_XET_CACHE": str(elsewhere)}
    path = os.pathsep.join([str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables, "PYTHONPATH": path},
        cwd=tmp_path / "home",
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    assert contents(cache / "assets") == assets_of(hub)
    assert {path.name for path in cache.iterdir()} == {"assets", "assets.json", "assets.lock"}
    assert not list((tmp_path / "home").iterdir())
    assert not elsewhere.exists()
    check_assets(cache / "assets", deep=True)
    manifest = json.loads((cache / "assets.json").read_text())
    assert (manifest["source"], manifest["revision"]) == (download.REPOSITORY, COMMIT)
    assert {path.partition("?")[0].split("/")[1] for _, path, _ in hub.requests} == {
        "api",
        "datasets",
    }
    assert not any("telemetry" in path or "agent" in path for _, path, _ in hub.requests)


def test_a_connection_that_breaks_goes_on_from_that_byte(hub: Hub, cache: Path) -> None:
    hub.break_off[BIG] = 2 * CHUNK_NBYTES
    (cache / "download" / "textures").mkdir(parents=True)
    (cache / "download" / "textures" / "of_an_older_commit.png").touch()
    told: list[tuple[str, int, int]] = []
    install_assets(None, lambda *now: told.append(now))
    assert hub.gets(BIG) == ["", f"bytes={2 * CHUNK_NBYTES}-"]
    assert hub.sent[BIG] == len(hub.files[BIG])
    assert contents(cache / "assets") == assets_of(hub)
    total = sum(map(len, assets_of(hub).values()))
    assert ("verified", total, total) in told


INSTALL = """
from polyarm.suites.libero.install import install_assets
install_assets(None, lambda *_: None)
"""


def test_a_killed_download_dies_whole_and_goes_on_from_the_files_it_has(
    hub: Hub, tmp_path: Path, cache: Path
) -> None:
    hub.hang_at = BIG
    path = os.pathsep.join([str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", INSTALL], env={**os.environ, "PYTHONPATH": path}
    ) as process:
        assert hub.hanging.wait(30)
        others = set(assets_of(hub)) - {BIG}
        # huggingface_hub writes down each file that it has finished.
        while len(list((cache / "download" / ".cache").rglob("*.metadata"))) < len(others):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    assert find_assets() is None
    before = {name: len(hub.gets(name)) for name in others}
    hub.released.set()
    install_assets(None, quiet)
    assert {name: len(hub.gets(name)) for name in others} == before
    assert contents(cache / "assets") == assets_of(hub)


@pytest.mark.parametrize("name", [BIG, "scenes/table.stl"])
def test_a_file_that_arrives_damaged_is_fetched_once_more(name: str, hub: Hub, cache: Path) -> None:
    hub.corrupt[name] = 1
    install_assets(None, quiet)
    assert len(hub.gets(name)) == 2
    assert contents(cache / "assets") == assets_of(hub)


def test_a_file_that_stays_damaged_is_named(hub: Hub, cache: Path) -> None:
    hub.corrupt["scenes/table.stl"] = 2
    with pytest.raises(StorageError, match=r"scenes/table\.stl is not what the hub says"):
        install_assets(None, quiet)
    assert find_assets() is None
    install_assets(None, quiet)
    assert contents(cache / "assets") == assets_of(hub)


def test_without_a_connection_the_other_way_is_named(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match=r"Connect.*polyarm setup libero --assets"):
        install_assets(None, quiet)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(StorageError, match=r"HF_HUB_OFFLINE.*polyarm setup libero --assets"):
        install_assets(None, quiet)


def test_a_revision_that_does_not_exist_is_told(hub: Hub, cache: Path) -> None:
    with pytest.raises(StorageError, match="revision/none"):
        install_assets(None, quiet, revision="none")


def test_a_file_that_the_hub_puts_outside_is_refused(hub: Hub, tmp_path: Path, cache: Path) -> None:
    hub.extra_name = "../../../escaped"
    with pytest.raises(StorageError, match="leads out of the folder"):
        install_assets(None, quiet)
    assert not list(tmp_path.rglob("escaped"))


def test_a_full_disk_is_told_and_gets_its_space_back(
    hub: Hub, tmp_path: Path, small_disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", "300k") as disk:
        monkeypatch.setenv("POLYARM_CACHE", str(disk))
        with pytest.raises(StorageError, match="the disk is full"):
            install_assets(None, quiet)
        assert {path.name for path in (disk / "libero").iterdir()} == {"assets.lock"}


def test_without_huggingface_hub_both_ways_are_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "huggingface_hub" else found(name)
    )
    with pytest.raises(MissingExtra, match=r"polyarm\[libero\].*--assets"):
        install_assets(None, quiet)

"""The journal of a run: one line per finished episode, on the disk before it counts.

A run's folder holds ``run.json`` (what is being run) and one ``episodes*.jsonl`` per rank. A line
is appended and synced before the episode counts, and a torn last line is cut off when the journal
is opened again, so a run that was killed at any moment goes on where it was. Locks are ordinary
files with a heartbeat: they work on NFS, where flock may not. Ranks share the episodes by claims,
which are such files too (`polyarm.rollout.sharing`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polyarm.contracts import EpisodeKey, EpisodeResult
from polyarm.errors import InvalidCall, RunConflict, StorageError
from polyarm.recording.filenames import stale_parts
from polyarm.report.encoding import decode_episode, encode_episode, plain, write_atomically
from polyarm.report.results import Results
from polyarm.rollout.plan import condensed
from polyarm.rollout.runlock import Job, RunLock, clear_away, in_use, living_holder

log = logging.getLogger("polyarm")

RUN_FILE = "run.json"
STAGED_EPISODES = "dataset_episodes"
KEPT_EPISODES = ("videos", "trajectories", STAGED_EPISODES)
"""Folders of a run that hold what is kept of its episodes."""
CLAIM = ".claim."
"""Begins the name of a claim to an episode."""
SPENT = ".rank{}.spent.json"
"""Name of what a rank leaves for the one that sums up."""
SCHEMA = 1

Finished = dict[tuple[str, EpisodeKey], EpisodeResult]
"""Results by policy and episode."""


class Journal:
    """One rank's journal, and what all ranks have written so far.

    Args:
        folder: The run's folder; made if it does not exist.
        run: What is being run: ``protocol`` must be equal to that of an earlier run in the folder.
            Ranks that were started together have the same ``job``.
        rank: Whose.
        alone: Whether nobody else may play episodes of this run at the same time.
        fresh: Whether to remove what an earlier run has left, unless this one's job has begun it:
            jobs that are started again go on.
        job: Whose processes take one another's place, see `RunLock`.
        waiting: Called while a predecessor is waited for; what it raises ends the wait.

    Attributes:
        lock: Says that this rank is alive.
        finished: What all ranks have finished, as far as it has been read.

    Raises:
        RunConflict: The folder belongs to another run, or is in use.
        StorageError: The folder cannot be written to.
    """

    def __init__(  # noqa: PLR0913  all but the first two are keyword-only
        self,
        folder: Path,
        run: Mapping[str, Any],
        *,
        rank: int = 0,
        alone: bool = True,
        fresh: bool = False,
        job: Job = Job(),  # noqa: B008  it cannot be changed
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._path = folder / episodes_file(rank)
        self._fd = -1
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f".rank{rank}.lock"
            self._command = run.get("job", "")
            about = {"rank": rank, "alone": alone, "command": self._command}
            self.lock = RunLock(path, job=job, waiting=waiting, **about)
            try:
                fresh = fresh and not was_begun_by(folder, self._command)
                self._refuse_company(alone=alone or fresh)
                if fresh:
                    clear_folder(folder)
                _agree(folder, run, replaces=lambda: not self.others() and not _has_lines(folder))
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
                self._end = _cut_torn_line(self._fd)
                self._reader = Reader(folder)
                self.finished = self._reader.finished
                self._reader.read()
                if not self.others():
                    self._tidy()
            except BaseException:
                self.close()
                raise

    def others(self) -> list[dict[str, Any]]:
        """Who else is alive and works in this folder."""
        return [
            holder
            for path in sorted(self._folder.glob(".rank*.lock"))
            if path != self.lock.path and (holder := living_holder(path)) is not None
        ]

    def read_others(self) -> list[EpisodeResult]:
        """What other ranks have written since the last time; it counts from now on."""
        with storage_errors(self._folder):
            return self._reader.read(but=self._path)

    def append(self, result: EpisodeResult) -> None:
        """Put a result on the disk; it counts when this returns.

        Raises:
            StorageError: It could not be written; the journal is as it was before.
            RunConflict: The folder is somebody else's by now.
        """
        self.lock.beat()
        line = json.dumps(encode_episode(result), separators=(",", ":")).encode() + b"\n"
        try:
            _write_all(self._fd, line)
            os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):  # a torn line is cut off when it is opened again
                os.ftruncate(self._fd, self._end)
            raise StorageError(
                error.errno, f"cannot write {self._path}: {error.strerror}; free some space and"
                f" run the same command again to go on"
            ) from error  # fmt: skip
        self._end += len(line)
        self.finished[result.policy, result.key] = result

    def beat(self) -> None:
        """Say that this run is alive; to be called every few seconds."""
        self.lock.beat()

    def close(self) -> None:
        """Close the file and let others use the folder."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.lock.release()

    def _refuse_company(self, *, alone: bool) -> None:
        for other in self.others():
            stranger = other.get("command", self._command) != self._command
            if alone or stranger or other.get("alone", True):
                raise RunConflict(in_use(self._folder, other))

    def _tidy(self) -> None:
        """Remove what ranks that are gone have left; nobody else is there."""
        for name in KEPT_EPISODES:
            for part in stale_parts(self._folder / name):
                part.unlink(missing_ok=True)
        for path in [*self._folder.glob(f"{CLAIM}*"), *self._folder.glob(".rank*.lock")]:
            if living_holder(path) is None:
                clear_away(path)


class Reader:
    """Reads the journals of all ranks, each line once.

    Args:
        folder: The run's.

    Attributes:
        finished: What has been read. Of two lines about one episode the first counts, except that
            anything counts more than an error.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._lines: dict[Path, int] = {}
        self.finished: Finished = {}

    def read(self, but: Path | None = None) -> list[EpisodeResult]:
        """Read what has been appended; returns what counts of it.

        Args:
            but: A journal that is not looked at.

        Raises:
            RunConflict: A line is damaged.
        """
        return [
            result
            for path in episode_files(self._folder)
            if path != but
            for result in self._read(path)
            if self._enter(result)
        ]

    def _read(self, path: Path) -> Iterator[EpisodeResult]:
        offset = self._offsets.get(path, 0)
        with path.open("rb") as file:  # opened anew: only then does NFS look what there is
            file.seek(offset)
            # What follows the last newline is being written, or its writer has ended.
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offsets[path] = offset + len(whole) + len(newline)
        for line in whole.split(b"\n") if newline else ():
            self._lines[path] = number = self._lines.get(path, 0) + 1
            try:
                yield decode_episode(json.loads(line))
            except (ValueError, AttributeError, InvalidCall) as error:
                raise RunConflict(
                    f"{path}, line {number} is no result that this version knows ({error}):"
                    f" {line[:80]!r}"
                ) from error

    def _enter(self, result: EpisodeResult) -> bool:
        before = self.finished.get((result.policy, result.key))
        counts = before is None or before.outcome == "error"
        if counts:
            self.finished[result.policy, result.key] = result
        return counts


def episodes_file(rank: int) -> str:
    """Name of a rank's journal."""
    return "episodes.jsonl" if rank == 0 else f"episodes.rank{rank}.jsonl"


def episode_files(folder: Path) -> list[Path]:
    """The journals of all ranks."""
    own = folder / episodes_file(0)
    return [*([own] if own.exists() else []), *sorted(folder.glob("episodes.rank*.jsonl"))]


def read_episodes(folder: Path) -> Finished:
    """What all ranks have finished, each episode once."""
    reader = Reader(folder)
    reader.read()
    return reader.finished


def load_results(folder: Path) -> Results:
    """A run's results so far, from its journal.

    Raises:
        RunConflict: The folder holds no run.
    """
    run = read_run(folder)
    before = Results.read(folder) if (folder / "results.json").exists() else None
    policies = max(1, len(run["protocol"].get("policies", {})))
    each = sum((stop - first) * repeats for first, stop, repeats in run["planned"].values())
    return Results(
        episodes=tuple(read_episodes(folder).values()),
        planned=policies * each,
        provenance=condensed(run["protocol"]),
        options=run["options"],
        wall=before.wall if before else {},
        notes=before.notes if before else (),
    )


def read_run(folder: Path) -> dict[str, Any]:
    """What is being run in a folder.

    Raises:
        RunConflict: The folder holds no run.
    """
    path = folder / RUN_FILE
    try:
        run: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise RunConflict(f"{folder} holds no run: there is no {RUN_FILE} in it") from None
    except ValueError as error:
        raise RunConflict(f"{path} is damaged: {error}") from error
    return run


def was_begun_by(folder: Path, job: str) -> bool:
    """Whether the run in a folder is one that this job has begun, or gone on with; "" is none."""
    try:
        return bool(job) and read_run(folder).get("job") == job
    except RunConflict:
        return False


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Where two nested mappings differ, one line each: ``horizon: 500 here, 300 there``."""
    lines = []
    for key in sorted({*ours, *theirs}, key=str):
        mine, other = ours.get(key), theirs.get(key)
        here = f"{prefix}{key}" if key != "" else prefix[:-1]  # a policy without a label
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            lines += differences(mine, other, f"{here}.")
        elif mine != other:
            lines.append(f"{here}: {mine!r} here, {other!r} there")
    return lines


def clear_folder(folder: Path) -> None:
    """Remove what a run has left in its folder; a folder without a run is left alone."""
    if not (folder / RUN_FILE).exists():
        return
    for name in ("results.json", "report.html"):
        (folder / name).unlink(missing_ok=True)
    hidden = [*folder.glob(f"{CLAIM}*"), *folder.glob(SPENT.format("*"))]
    for path in [*episode_files(folder), *hidden]:
        path.unlink(missing_ok=True)
    for name in KEPT_EPISODES:
        shutil.rmtree(folder / name, ignore_errors=True)
    # Last: without it, episodes that are still there would be taken for those of the next run.
    (folder / RUN_FILE).unlink()


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Errors of the disk as `StorageError`, with what to do about them."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            error.errno, f"cannot write to {folder}: {error.strerror}; when that is put right, run"
            f" the same command again to go on"
        ) from error  # fmt: skip


def _has_lines(folder: Path) -> bool:
    """Whether any episode has been written down, whatever came of it."""
    return any(b"\n" in path.read_bytes() for path in episode_files(folder))


def _agree(folder: Path, run: Mapping[str, Any], *, replaces: Callable[[], bool]) -> None:
    """Write down what is run, or check that it is what the folder already holds.

    Args:
        folder: The run's.
        run: What is run.
        replaces: Whether it may be another run than before, as nothing has come of that.
    """
    agreed: dict[str, Any] = plain({"schema": SCHEMA, **run})
    path = folder / RUN_FILE
    if path.exists():
        before = read_run(folder)
        theirs = before.get("protocol", {})
        for kind in ("policies", "tasks"):
            # Others may join a run; one that was there must be what it was.
            ours, known = agreed["protocol"].get(kind, {}), theirs.get(kind, {})
            agreed["protocol"][kind] = {**known, **ours}
            theirs[kind] = {**ours, **known}
        found = differences(agreed["protocol"], theirs)
        agreed["planned"] = _united(before.get("planned", {}), agreed["planned"])
        if found and replaces():
            clear_folder(folder)
            agreed = plain({"schema": SCHEMA, **run})
        elif found:
            raise RunConflict(
                f"{folder} holds results of another run; mixing them would make a wrong score."
                f" What differs:\n  " + "\n  ".join(found) + "\nChoose another folder with --out,"
                " or start over with --fresh."
            )
    write_atomically(path, json.dumps(agreed, indent=2) + "\n")


def _united(before: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, list[int]]:
    """Episodes that one or the other run has planned, as ranges by task."""
    united = {task: list(range_) for task, range_ in before.items()}
    for task, (first, stop, repeats) in planned.items():
        known = united.get(task, [first, stop, repeats])
        united[task] = [min(first, known[0]), max(stop, known[1]), max(repeats, known[2])]
    return united


def _cut_torn_line(fd: int) -> int:
    """Cut off what follows the last newline; returns the length that remains."""
    size = os.fstat(fd).st_size
    data = os.pread(fd, size, 0)
    whole = data.rfind(b"\n") + 1
    if whole < size:
        log.warning("cutting off a torn line of %d bytes at the journal's end", size - whole)
        os.ftruncate(fd, whole)
    return whole


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]

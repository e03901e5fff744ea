"""What a training leaves for people to look at: metrics, dashboards, a learning curve."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyarm.errors import StorageError
from polyarm.report.encoding import plain
from polyarm.report.sinks import ScalarLog, open_log, require_sink
from polyarm.rollout.runlock import Job, RunLock
from polyarm.training.options import TrainOptions
from polyarm.training.ppo import Update

_log = logging.getLogger(__name__)

_METRICS = "metrics.jsonl"
_TENSORBOARD = "tensorboard"
_SMOOTHED = 10


class Logbook:
    """A run's folder, which nobody else may use meanwhile.

    Args:
        folder: Where it is.
        options: What is run.
        job: What starts this process again if it ends, see `RunLock`.
        fresh: Whether to begin anew; asked once the folder is ours.
        waiting: Called while a predecessor in the same job is waited for; it may raise.

    Raises:
        RunConflict: Somebody else is using it.
        MissingExtra: A dashboard's package is not installed.
        StorageError: It cannot be written to; so do all methods.
    """

    def __init__(
        self,
        folder: Path,
        options: TrainOptions,
        job: Job = Job(),  # noqa: B008  it cannot be changed
        *,
        fresh: Callable[[], bool] = lambda: False,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self._options = options
        for sink in options.sinks:
            require_sink(sink)
        with _writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = RunLock(folder / "lock", job=job, waiting=waiting)
            self._fresh = fresh()
        self._sinks: list[ScalarLog] = []

    def begin_anew(self) -> None:
        """Forget what an earlier run has left, if that was asked for; all else is ready by now."""
        if not self._fresh:
            return
        with _writing_to(self.folder):
            for name in (_METRICS, "checkpoint.pt", "curve.png"):
                (self.folder / name).unlink(missing_ok=True)
            shutil.rmtree(self.folder / _TENSORBOARD, ignore_errors=True)

    def go_on_after(self, number: int) -> None:
        """Begin behind this update; forget what came later, which no checkpoint holds."""
        kept = [one for one in read_metrics(self.folder) if one["number"] <= number]
        path, part = self.folder / _METRICS, self.folder / f".{_METRICS}.part"
        with _writing_to(self.folder):
            part.write_text("".join(f"{json.dumps(one)}\n" for one in kept))
            part.replace(path)
        config = {"options": plain(self._options.shaping())}
        with _writing_to(self.folder):
            # It would show what came later, too, beside what will come now.
            shutil.rmtree(self.folder / _TENSORBOARD, ignore_errors=True)
            for sink in self._options.sinks:
                name = self.folder.name
                log = open_log(sink, run_name=name, folder=self.folder, config=config)
                self._sinks.append(log)
                for one in kept if sink == _TENSORBOARD else ():
                    _log_to(log, one)

    def enter(self, update: Update) -> None:
        """Note an update."""
        self._lock.beat()
        values = asdict(update)
        with _writing_to(self.folder):
            with (self.folder / _METRICS).open("a") as file:
                file.write(f"{json.dumps(values)}\n")
            for sink in self._sinks:
                _log_to(sink, values)

    def draw(self) -> None:
        """Draw the learning curve, where matplotlib is installed."""
        metrics = read_metrics(self.folder)
        if metrics:
            with _writing_to(self.folder):
                draw_curve(self.folder / "curve.png", {"": metrics}, title=self._options.task)

    def close(self) -> None:
        """Finish the dashboards and let others have the folder."""
        for sink in self._sinks:
            sink.close()
        self._lock.release()


def _log_to(sink: ScalarLog, values: Mapping[str, Any]) -> None:
    known = {f"train/{name}": float(one) for name, one in values.items() if one is not None}
    sink.log(known, values["steps"])


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{folder} cannot be written to: {error}") from error


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The updates of a run, as they were entered; a line that was cut off is none."""
    found = []
    path = folder / _METRICS
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def draw_curve(path: Path, runs: dict[str, Sequence[dict[str, Any]]], *, title: str) -> bool:
    """Success rates, or returns where envs know no success, over env steps.

    Args:
        path: The PNG.
        runs: Metrics of one or several runs, by what they are called in the legend.
        title: What is written above.

    Returns:
        Whether it was drawn: matplotlib is an extra.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        _log.warning("no %s was drawn: pip install 'polyarm[train]' brings matplotlib", path.name)
        return False
    everything = [one for run in runs.values() for one in run]
    judged = any(one["success_rate"] is not None for one in everything)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, run in runs.items():
        _draw_run(axes, run, name, judged=judged)
    axes.set_title(title)
    axes.set_xlabel("env steps")
    axes.set_ylabel("success rate" if judged else "return")
    if judged:
        axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=110)
    return True


def _draw_run(axes: Any, run: Sequence[dict[str, Any]], name: str, *, judged: bool) -> None:
    key, tested = ("success_rate", "eval_success") if judged else ("mean_return", "eval_return")
    seen = [(one["steps"], one[key]) for one in run if one[key] is not None]
    smooth = [
        sum(value for _, value in seen[max(0, end - _SMOOTHED) : end])
        / len(seen[max(0, end - _SMOOTHED) : end])
        for end in range(1, len(seen) + 1)
    ]
    label = f"{name} " if name else ""
    (line,) = axes.plot(
        [steps for steps, _ in seen], smooth, alpha=0.4, linewidth=1, label=f"{label}training"
    )
    points = [(one["steps"], one[tested]) for one in run if one[tested] is not None]
    if points:
        axes.plot(
            *zip(*points, strict=True),
            marker="o",
            markersize=4,
            color=line.get_color(),
            label=f"{label}held-out episodes",
        )

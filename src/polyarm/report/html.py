"""The report: one file that needs nothing else but the videos beside it.

Every number is worked out here; the page only shows, sorts and filters. All text is escaped by
Jinja2, the data for the script cannot leave its element, and the page's own policy lets no
script run but ours and nothing be loaded from a network.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from polyarm.contracts import EpisodeResult
from polyarm.errors import MissingExtra
from polyarm.report.encoding import plain, write_atomically
from polyarm.report.figures import Histogram, Segment, curve, histogram, number, time_split
from polyarm.report.results import Results

FILE_NAME = "report.html"

_OUTCOMES = ("success", "failure", "error")
_EPISODES_PER_ERROR = 12


@dataclass(frozen=True, slots=True)
class View:
    """What is shown for one policy; a run of one policy has one view."""

    policy: str
    results: Results
    histograms: tuple[Histogram, ...]
    episode_time: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Episodes that failed alike; ``places`` are their rows in the page's data."""

    kind: str
    phase: str
    message: str
    count: int
    places: tuple[tuple[int, str], ...]


def require_report_extra() -> None:
    """Check that what reports need is installed.

    Raises:
        MissingExtra: With the command that installs it.
    """
    missing = [name for name in ("jinja2", "scipy") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"results and reports need {' and '.join(missing)}: pip install 'polyarm[report]'"
        )


def write_report(results: Results, folder: Path) -> Path:
    """Write ``report.html`` into the run's folder, whole or not at all; returns its path.

    Args:
        results: What is shown.
        folder: Where the report goes; the videos' paths are relative to it.

    Raises:
        MissingExtra: If Jinja2 or SciPy is not installed.
    """
    folder = Path(folder)
    return write_atomically(folder / FILE_NAME, render(results, folder.resolve().name))


def render(results: Results, title: str) -> str:
    """The report's HTML."""
    page: str = _template().render(**_context(results, title))
    return page


def duration(seconds: float | None) -> str:
    """A duration as people say it: ``0.42 s``, ``12.3 s``, ``25 min``, ``3 h 12 min``."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 100:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def percent(share: float | None, digits: int = 1) -> str:
    """A share of 1 in percent, or a dash."""
    return "–" if share is None else f"{100 * share:.{digits}f}%"


@functools.cache
def _template() -> Any:
    """The page without its data; compiling it takes longer than filling it in."""
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra(
            "the HTML report needs Jinja2, which is not installed: pip install 'polyarm[report]'"
        ) from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        duration=duration, percent=percent, number=_number_or_dash, leaf=_leaf
    )
    environment.tests["branch"] = _is_branch
    return environment.from_string(_text("template.html"))


def _context(results: Results, title: str) -> dict[str, Any]:
    from markupsafe import Markup  # Jinja2 depends on it.

    script = _text("template.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policies = results.by_policy() or {"": results}
    total = results.wall.get("total")
    spent = {name: value for name, value in results.wall.items() if name not in _NOT_SPENT}
    return {
        "title": title,
        "results": results,
        "finished": _finished(results.episodes),
        "filmed": any(one.videos for one in results.episodes),
        "views": [_view(name, part) for name, part in policies.items()],
        "curve": curve(policies) if len(policies) > 1 else None,
        "wall_time": time_split(spent, total),
        "gpu_busy": results.wall.get("gpu_busy_share"),
        "error_groups": _error_groups(results.episodes),
        "options": plain(results.options),
        "provenance": plain(results.provenance),
        # Nothing in these three comes from the run as it is: text files of ours, and escaped JSON.
        "style": Markup(_text("template.css")),
        "script": Markup(script),
        "data": Markup(_script_data(_data(results))),
        "script_hash": digest,
    }


_NOT_SPENT = ("total", "gpu_busy_share")


def _view(policy: str, results: Results) -> View:
    won = [episode for episode in results.episodes if episode.outcome == "success"]
    lost = [episode for episode in results.episodes if episode.outcome == "failure"]
    steps = histogram(
        "Steps per episode", [one.steps for one in won], [one.steps for one in lost], ""
    )
    seconds = histogram(
        "Time per episode", [one.seconds for one in won], [one.seconds for one in lost], " s"
    )
    counted = [*won, *lost]
    spent: dict[str, float] = {}
    for episode in counted:
        for name, value in episode.timings.items():
            if math.isfinite(value):
                spent[name] = spent.get(name, 0.0) + value / len(counted)
    figures = tuple(one for one in (steps, seconds) if one is not None)
    return View(policy, results, figures, time_split(spent))


def _error_groups(episodes: Iterable[EpisodeResult]) -> list[ErrorGroup]:
    groups: dict[tuple[str, str, str], list[tuple[int, str]]] = {}
    for place, episode in enumerate(episodes):
        if episode.outcome == "error":
            parts = (episode.error.get(name, "") for name in ("kind", "phase", "message"))
            kind, phase, message = parts
            groups.setdefault((kind, phase, message), []).append((place, str(episode.key)))
    found = [
        ErrorGroup(*names, len(places), tuple(places[:_EPISODES_PER_ERROR]))
        for names, places in groups.items()
    ]
    return sorted(found, key=lambda group: -group.count)


def _data(results: Results) -> dict[str, Any]:
    """What the page's script works on; rows rather than objects, for thousands of episodes."""
    tasks = {task.name: place for place, task in enumerate(results.tasks)}
    policies = {name: place for place, name in enumerate(results.by_policy() or [""])}
    return {
        "tasks": list(tasks),
        "policies": list(policies),
        "episodes": [
            [
                tasks[one.key.name],
                policies[one.policy],
                one.key.index,
                one.key.repeat,
                _OUTCOMES.index(one.outcome),
                one.steps,
                plain(float(one.total_reward)),
                plain(float(one.seconds)),
                one.attempts,
                list(one.videos),
                dict(one.error),
                {name: plain(float(value)) for name, value in one.timings.items()},
                one.trajectory,
                one.action_hash,
                one.invalid_actions,
            ]
            for one in results.episodes
        ],
    }


def _script_data(data: dict[str, Any]) -> str:
    """JSON that holds none of the characters which mean something to an HTML parser."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finished(episodes: Iterable[EpisodeResult]) -> str:
    last = max((one.finished_at for one in episodes if math.isfinite(one.finished_at)), default=0.0)
    return datetime.fromtimestamp(last, UTC).strftime("%Y-%m-%d %H:%M UTC") if last > 0 else ""


def _number_or_dash(value: float | None) -> str:
    return "–" if value is None else number(value)


def _is_branch(value: Any) -> bool:
    """Whether a value of the provenance takes more than a line."""
    if isinstance(value, list):
        return any(isinstance(one, dict | list) for one in value)
    return isinstance(value, dict) and bool(value)


def _leaf(value: Any) -> str:
    """A value of the provenance on one line."""
    if value is None or value in ([], {}):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(_leaf, value)) if isinstance(value, list) else str(value)


def _text(name: str) -> str:
    return resources.files("polyarm.report").joinpath(name).read_text("utf-8")

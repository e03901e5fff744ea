"""Two runs against each other, episode by episode: equal keys are the same episode.

An episode that errored on either side says nothing about the policies and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from polyarm.contracts import EpisodeKey, EpisodeResult
from polyarm.errors import InvalidCall
from polyarm.report import stats
from polyarm.report.encoding import plain
from polyarm.report.results import Results
from polyarm.report.stats import Difference, Rate

_OF_INTEREST = 0.05
_SHOWN = 8

_Pair = tuple[EpisodeResult, EpisodeResult]


@dataclass(frozen=True, slots=True)
class PairedOutcome:
    """How A and B did on the same episodes.

    Attributes:
        name: A task's full name, or ``"overall"``.
        a: A's success rate over the paired episodes.
        b: B's success rate over the paired episodes.
        only_a: Episodes in which only A succeeded.
        only_b: Episodes in which only B succeeded.
        difference: B's rate minus A's.
        p: Of the exact McNemar test; per task adjusted for the number of tasks (Holm).
        verdict: The same in plain words.
    """

    name: str
    a: Rate
    b: Rate
    only_a: int
    only_b: int
    difference: Difference
    p: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs against each other.

    Attributes:
        overall: Over all paired episodes.
        tasks: Per task, in A's order.
        errors: Pairs left out because A or B errored.
        unpaired_a: Episodes that only A has.
        unpaired_b: Episodes that only B has.
        changed: What the provenances do not agree on: ``(path, value of A, value of B)``.
        warnings: What a reader should know before believing the verdict, in sentences.
    """

    overall: PairedOutcome
    tasks: tuple[PairedOutcome, ...]
    errors: int
    unpaired_a: int
    unpaired_b: int
    changed: tuple[tuple[str, str, str], ...]
    warnings: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """The overall outcome in plain words."""
        return self.overall.verdict

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON values."""
        return {"schema": 1, "verdict": self.verdict, **plain(asdict(self))}


def compare(a: Results, b: Results) -> Comparison:
    """Compare two runs over the episodes that both have.

    Where either run holds several policies, episodes pair only within policies of the same name;
    ``results.by_policy()`` gives single ones to compare across names.

    Raises:
        InvalidCall: If there is no episode that both have run without error.
    """
    several = max(len(a.by_policy()), len(b.by_policy())) > 1
    of_a, of_b = _by_key(a, several=several), _by_key(b, several=several)
    common = [key for key in of_a if key in of_b]
    pairs = [(of_a[key], of_b[key]) for key in common]
    good = [pair for pair in pairs if "error" not in (pair[0].outcome, pair[1].outcome)]
    if not good:
        raise InvalidCall(_no_pairs(a, b, errored=len(pairs), several=several))
    changed = tuple(_changes(a.provenance, b.provenance))
    errors, only_a, only_b = len(pairs) - len(good), len(of_a) - len(pairs), len(of_b) - len(pairs)
    return Comparison(
        overall=_outcome("overall", good),
        tasks=_task_outcomes(good),
        errors=errors,
        unpaired_a=only_a,
        unpaired_b=only_b,
        changed=changed,
        warnings=tuple(_warnings(errors, only_a, only_b, changed)),
    )


def signed_points(share: float) -> str:
    """A difference of rates in percentage points, such as ``+12`` or ``−0.5``."""
    points = round(share * 100, 1)
    text = f"{abs(points):.0f}" if abs(points) >= 10 or points == int(points) else f"{abs(points)}"
    return text if points == 0 else ("+" if points > 0 else "−") + text


def p_text(p: float) -> str:
    """A p value as papers write it."""
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def _by_key(results: Results, *, several: bool) -> dict[tuple[str, EpisodeKey], EpisodeResult]:
    return {(one.policy if several else "", one.key): one for one in results.episodes}


def _task_outcomes(pairs: Iterable[_Pair]) -> tuple[PairedOutcome, ...]:
    by_task: dict[str, list[_Pair]] = {}
    for pair in pairs:
        by_task.setdefault(pair[0].key.name, []).append(pair)
    p_values = [stats.exact_mcnemar(*_discordant(pairs)) for pairs in by_task.values()]
    adjusted = stats.holm(p_values)
    return tuple(
        _outcome(name, pairs, p) for (name, pairs), p in zip(by_task.items(), adjusted, strict=True)
    )


def _outcome(name: str, pairs: list[_Pair], p: float | None = None) -> PairedOutcome:
    only_a, only_b = _discordant(pairs)
    both = sum(a.outcome == b.outcome == "success" for a, b in pairs)
    difference = stats.paired_difference(only_a, only_b, len(pairs))
    p = stats.exact_mcnemar(only_a, only_b) if p is None else p
    return PairedOutcome(
        name=name,
        a=stats.success_rate(both + only_a, len(pairs)),
        b=stats.success_rate(both + only_b, len(pairs)),
        only_a=only_a,
        only_b=only_b,
        difference=difference,
        p=p,
        verdict=_verdict(difference, p, len(pairs), only_a + only_b),
    )


def _discordant(pairs: Iterable[_Pair]) -> tuple[int, int]:
    wins = [(a.outcome == "success", b.outcome == "success") for a, b in pairs]
    return wins.count((True, False)), wins.count((False, True))


def _verdict(difference: Difference, p: float, pairs: int, discordant: int) -> str:
    interval = f"95% interval {signed_points(difference.low)} to {signed_points(difference.high)}"
    found = f"{signed_points(difference.estimate)} points ({interval}), {p_text(p)}, {pairs} paired"
    found += " episode" if pairs == 1 else " episodes"
    if p < stats.SIGNIFICANCE:
        better = "B" if difference.estimate > 0 else "A"
        return f"{better} is better: {found}"
    # With few pairs the observed share may well be 0; one pseudo-pair keeps the advice sane.
    needed = stats.pairs_needed((discordant + 1) / (pairs + 2), _OF_INTEREST)
    text = f"No real difference can be seen: {found}"
    if needed <= pairs:
        return f"{text}; a difference of 5 points would most likely have shown"
    enough = f"{_rounded(needed):,} episodes"
    return f"{text}; to see a difference of 5 points you would need about {enough}"


def _rounded(count: int) -> int:
    """Two digits are as much as a guess of this kind is worth."""
    unit: int = 10 ** max(0, len(str(count)) - 2)
    return -(-count // unit) * unit


def _changes(a: Any, b: Any, path: str = "") -> Iterable[tuple[str, str, str]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in [*a, *(key for key in b if key not in a)]:
            inner = f"{path}.{key}" if path else str(key)
            yield from _changes(a.get(key, _ABSENT), b.get(key, _ABSENT), inner)
    elif plain(a) != plain(b):
        yield path, _text(a), _text(b)


class _Absent:
    def __str__(self) -> str:
        return "(absent)"


_ABSENT = _Absent()


def _text(value: Any) -> str:
    text = str(plain(value))
    return text if len(text) <= 80 else text[:79] + "…"


def _warnings(
    errors: int, only_a: int, only_b: int, changed: tuple[tuple[str, str, str], ...]
) -> Iterable[str]:
    if errors:
        yield f"{_episodes(errors)} left out because A or B ended in an error."
    for who, count in (("A", only_a), ("B", only_b)):
        if count:
            yield f"{_episodes(count)} left out because only {who} has run {_them(count)}."
    # That the policies differ is what is being compared.
    others = [path for path, _, _ in changed if not {"policy", "policies"} & {*path.split(".")}]
    if others:
        names = ", ".join(others[:_SHOWN])
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        yield f"The fingerprints differ in {names}{more}: not only the policy may have changed."


def _episodes(count: int) -> str:
    return "1 episode was" if count == 1 else f"{count:,} episodes were"


def _them(count: int) -> str:
    return "it" if count == 1 else "them"


def _no_pairs(a: Results, b: Results, *, errored: int, several: bool) -> str:
    if errored:
        return (
            f"nothing to compare: all {errored} episodes that A and B share errored in one of them"
        )
    examples = " and ".join(
        f"{name} has {len(one.episodes)}"
        + (f" (such as {one.episodes[0].key})" if one.episodes else "")
        for name, one in (("A", a), ("B", b))
    )
    hint = "run both over the same suites, tasks and episode indices"
    if several:
        hint = "where a run holds several policies, only policies of the same name are paired"
    return (
        f"nothing to compare: A and B share no episode; {examples}. Comparing needs pairs: {hint}."
    )

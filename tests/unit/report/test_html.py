"""The report is one file, tells everything, and lets nothing of the run become markup."""

import json
import math
import re
import sys
import time
from html.parser import HTMLParser

import pytest

from polyarm.errors import MissingExtra
from polyarm.report import html
from polyarm.report.html import duration, percent, render, write_report
from polyarm.report.results import Results

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7*7 }}"


class Elements(HTMLParser):
    """Every element with its attributes, and the text of the data element."""

    def __init__(self, page):
        super().__init__()
        self.found, self.data, self._in_data = [], "", False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self._in_data = dict(attributes).get("id") == "data"

    def handle_endtag(self, tag):
        self._in_data = False

    def handle_data(self, data):
        self.data += data if self._in_data else ""

    def named(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def text_of(page):
    page = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    page = re.sub(r"</?(?:span|b|i|em|small|button)\b[^>]*>", "", page)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def test_the_report_tells_the_headline_with_its_interval(results, tmp_path):
    path = write_report(results({"toy/a": "sssf", "toy/b": "e"}, planned=9), tmp_path)
    assert path == tmp_path / "report.html"
    text = text_of(path.read_text())
    for words in ("75.0%", "30.1–95.4%", "Incomplete: 4 missing", "1 error remains", "toy/b"):
        assert words in text


def test_a_complete_run_without_errors_says_so(results):
    text = text_of(render(results(), "run"))
    assert "Complete" in text
    assert "No errors" in text


def test_an_empty_run_has_a_report_too():
    assert "0 of 3 episodes" in text_of(render(Results((), 3), "run"))


def test_nothing_of_the_run_becomes_markup(episode):
    nasty = episode(
        f"toy/{EVIL}", outcome="error", policy=EVIL, trajectory=EVIL, action_hash=EVIL,
        videos=(EVIL, "//evil.example/x.mp4"), timings={EVIL: 1.0},
        error={"kind": EVIL, "phase": EVIL, "message": EVIL, EVIL: EVIL},
    )  # fmt: skip
    run = Results(
        (nasty, episode(f"toy/{EVIL}", 1, policy="b" + EVIL, timings={EVIL: 1.0})), planned=2,
        provenance={EVIL: {"instruction": EVIL}, "list": [EVIL, {EVIL: EVIL}]},
        options={EVIL: EVIL}, notes=(EVIL,), wall={"total": 3.0, EVIL: 1.0},
    )  # fmt: skip
    page = render(run, EVIL)
    elements = Elements(page)
    assert len(elements.named("script")) == 2
    assert elements.named("img") == []
    assert "alert(1)</script>" not in page
    assert not any("onerror" in attributes for _, attributes in elements.found)
    assert "49" not in text_of(page).replace("{{ 7*7 }}", "")
    assert json.loads(elements.data)["episodes"][0][9] == [EVIL, "//evil.example/x.mp4"]


def test_the_page_refers_to_nothing_outside(results):
    page = render(results(), "run")
    elements = Elements(page)
    assert not re.search(r"https?:|@import|url\(", page)
    assert [link["href"] for link in elements.named("link")] == ["data:,"]
    policy = elements.named("meta")[1]["content"]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert not [a for _, attributes in elements.found for a in attributes if a.startswith("on")]


def test_rewards_that_are_no_numbers_do_not_break_the_page(episode):
    run = Results(
        (
            episode(index=0, total_reward=math.nan, seconds=math.inf),
            episode(index=1, total_reward=-math.inf, timings={"sim": math.nan}),
        ),
        planned=2,
        wall={"total": math.nan, "sim": 1.0},
    )
    data = json.loads(Elements(render(run, "run")).data)
    assert [row[6] for row in data["episodes"]] == ["nan", "-inf"]


def test_checkpoints_are_drawn_when_there_are_several(results):
    parts = [
        results({"toy/a": letters}, policy=f"p-{n}") for n, letters in ((100, "ff"), (200, "ss"))
    ]
    run = Results(tuple(one for part in parts for one in part.episodes), 4)
    page = render(run, "run")
    assert "Checkpoints" in text_of(page)
    dots = [one for one in Elements(page).named("button") if one.get("class") == "dot"]
    assert [dot["data-policy"] for dot in dots] == ["p-100", "p-200"]
    assert "Checkpoints" not in text_of(render(parts[0], "run"))


def test_errors_are_grouped_by_what_happened(episode):
    gone = {"kind": "died", "phase": "step", "message": "killed by SIGSEGV"}
    hung = {"kind": "hung", "phase": "reset", "message": "hung for 60 s"}
    errors = [hung] + [gone] * 14
    run = Results(
        tuple(episode(index=i, outcome="error", error=error) for i, error in enumerate(errors)), 15
    )
    text = text_of(render(run, "run"))
    assert text.index("14×") < text.index("1× hung")
    assert "and 2 more" in text


def test_time_and_gpu_are_shown_where_known(results):
    wall = {"total": 10.0, "sim": 5.0, "policy": 3.0, "gpu_busy_share": 0.42}
    text = text_of(render(results(wall=wall), "run"))
    for words in ("simulation 50%", "policy (inference) 30%", "other 20%", "42% of the wall time"):
        assert words in text
    assert "GPU" not in text_of(render(results(), "run"))


def test_provenance_and_options_are_a_tree(results):
    run = results(provenance={"git": {"dirty": False}, "size": [256, 256]}, options={"seed": None})
    text = text_of(render(run, "run"))
    for words in ("git dirty no", "size 256, 256", "Options seed –"):
        assert words in text


def test_five_thousand_episodes_are_written_in_a_moment(results, tmp_path):
    run = results({f"toy/task-{n}": "ssfse" * 20 for n in range(50)})
    begin = time.perf_counter()
    path = write_report(run, tmp_path)
    assert time.perf_counter() - begin < 5
    assert path.stat().st_size < 3_000_000


def test_durations_and_shares_are_written_for_people():
    assert [duration(s) for s in (0.4211, 12.34, 1500, 11520, None, math.nan)] == [
        "0.42 s", "12.3 s", "25 min", "3 h 12 min", "–", "–"
    ]  # fmt: skip
    assert [percent(0.1234), percent(None), percent(1.0, 0)] == ["12.3%", "–", "100%"]


def test_without_jinja_the_message_holds_the_command_that_installs_it(
    results, tmp_path, monkeypatch
):
    html._template.cache_clear()  # other tests may have used it
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=r"pip install 'polyarm\[report\]'"):
        write_report(results(), tmp_path)

"""The report in a real browser, from a file, without a network: it shows, sorts, filters, plays."""

import re
import shutil
import time
from types import SimpleNamespace

import av
import numpy as np
import pytest

from polyarm.contracts import EpisodeKey, EpisodeResult
from polyarm.report.html import write_report
from polyarm.report.results import Results

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is missing: pip install playwright"
)
expect = playwright.expect

# Playwright's own Chromium cannot play H.264, the system's can.
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
EVIL = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1180, "height": 900}


def episode(task, index, outcome, **values):
    fields = {"steps": 10 * index, "total_reward": float(-index), "seconds": 0.5} | values
    return EpisodeResult(EpisodeKey("toy", task, index), outcome, **fields)


@pytest.fixture
def browse():
    """Opens a page; afterwards fails on console errors and on requests other than of files."""
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt install chromium")
    seen = SimpleNamespace(problems=[], requests=[])
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def open_page(results, folder, fragment="", **context):
            path = write_report(results, folder)
            page = browser.new_context(**{"viewport": DESKTOP} | context).new_page()
            page.on("console", lambda message: seen.problems.append(message.text))
            page.on("pageerror", lambda error: seen.problems.append(str(error)))
            page.on("dialog", lambda dialog: seen.problems.append(f"alert {dialog.message}"))
            page.on("request", lambda request: seen.requests.append(request.url))
            page.goto(path.as_uri() + fragment)
            return page

        open_page.seen = seen
        yield open_page
        browser.close()
    assert seen.problems == []
    strangers = [url for url in seen.requests if not url.startswith(("file://", "data:"))]
    assert strangers == []


@pytest.fixture(scope="session")
def run():
    reach = [episode("reach", n, "success", steps=30 + n, policy="p-1") for n in range(30)]
    push = [episode("push", n, "failure" if n % 3 else "success", policy="p-1") for n in range(30)]
    errors = [
        episode("pick", n, "error", policy="p-1", error={"kind": "died", "message": f"boom {n}"})
        for n in range(2)
    ]
    pick = [episode("pick", n, "failure", policy="p-1") for n in range(2, 9)]
    return Results(
        (*reach, *push, *errors, *pick),
        planned=70,
        provenance={"commit": "a" * 200, "nested": {"deep": {"er": [1, {"x": EVIL}]}}},
        wall={"total": 60.0, "sim": 30.0, "frames": 5.0, "policy": 15.0, "gpu_busy_share": 0.3},
        notes=("A note with a-very-long-word-" + "x" * 120,),
    )


def write_video(path):
    path.parent.mkdir(parents=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for step in range(20):
            image = np.full((64, 64, 3), 12 * step, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def names(page):
    return [name.strip() for name in page.locator(".tasks tbody th").all_inner_texts()]


def test_tasks_are_sorted_by_any_column_and_filtered_by_name(browse, run, tmp_path):
    page = browse(run, tmp_path)
    assert names(page) == ["toy/reach", "toy/push", "toy/pick"]
    page.get_by_role("button", name="Task", exact=True).first.click()
    assert names(page) == ["toy/pick", "toy/push", "toy/reach"]
    rate = page.get_by_role("columnheader", name="Rate", exact=True)
    rate.get_by_role("button").click()
    expect(rate).to_have_attribute("aria-sort", "descending")
    assert names(page) == ["toy/reach", "toy/push", "toy/pick"]
    rate.get_by_role("button").click()
    assert names(page) == ["toy/pick", "toy/push", "toy/reach"]
    page.get_by_label("Filter tasks").fill("PU")
    assert page.locator(".tasks tbody tr:visible").count() == 1


def test_episodes_are_sorted_and_filtered_in_grid_and_table_alike(browse, run, tmp_path):
    page = browse(run, tmp_path)
    cells, rows = page.locator("#grid button.cell:visible"), page.locator("#table tbody tr")
    expect(page.locator("#found")).to_have_text("69 episodes")
    assert cells.count() == 69
    assert rows.count() == 25
    page.locator("#more").click()
    assert rows.count() == 69
    page.get_by_label("error", exact=True).check(force=True)
    expect(page.locator("#found")).to_have_text("2 of 69 episodes")
    assert (cells.count(), rows.count()) == (2, 2)
    page.get_by_label("all", exact=True).check(force=True)
    page.get_by_label("Filter episodes").fill("boom 1")
    expect(page.locator("#found")).to_have_text("1 of 69 episodes")
    page.get_by_label("Filter episodes").fill("")
    page.locator("button[data-task='toy/push']").click()
    expect(page.locator("#found")).to_have_text("30 of 69 episodes")
    header = page.locator("#table thead th", has_text="Return")
    header.get_by_role("button").click()
    assert rows.first.locator("td").nth(4).inner_text() == "-29"
    header.get_by_role("button").click()
    assert rows.first.locator("td").nth(4).inner_text() == "0"


def test_an_episode_opens_by_keyboard_and_plays_its_video(browse, tmp_path):
    name = "videos/toy reach#0 100%.mp4"
    write_video(tmp_path / name)
    played = episode("reach", 0, "success", videos=(name,), timings={"sim": 0.3, "policy": 0.1})
    failed = episode("reach", 1, "error", error={"kind": "hung", "message": "no answer"})
    page = browse(Results((played, failed), 2), tmp_path)
    first, second = page.locator("#grid button.cell").all()
    first.focus()
    page.keyboard.press("ArrowRight")
    expect(second).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    detail = page.get_by_role("dialog")
    expect(detail).to_contain_text("toy/reach #0")
    video = detail.locator("video")
    reached = video.evaluate(
        "v => new Promise(done => v.addEventListener('timeupdate',"
        " () => v.currentTime > 0.2 && done([v.currentTime, v.videoWidth])))"
    )
    assert reached[0] > 0.2
    assert reached[1] == 64
    page.keyboard.press("ArrowRight")
    expect(detail).to_contain_text("no answer")
    expect(detail.locator("video")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(detail).to_be_hidden()
    expect(page).to_have_url(re.compile(r"report\.html$"))


def test_a_link_leads_to_an_episode_and_a_missing_video_is_told(browse, tmp_path):
    gone = episode("reach", 0, "failure", videos=("videos/gone.mp4",))
    page = browse(Results((gone,), 1), tmp_path, fragment="#episode-0")
    expect(page.get_by_role("dialog")).to_contain_text("This video cannot be played")
    # The browser itself reports the missing file; that is the one message allowed here.
    assert all("ERR_FILE_NOT_FOUND" in problem for problem in browse.seen.problems)
    browse.seen.problems.clear()


def test_another_policy_changes_every_figure(browse, tmp_path):
    episodes = [
        episode("reach", n, "success" if n < wins else "failure", policy=f"p-{step}")
        for step, wins in ((100, 2), (200, 5), (300, 8))
        for n in range(10)
    ]
    page = browse(Results(tuple(episodes), 30), tmp_path)
    score = page.locator(".headline:visible .figure")
    expect(score).to_have_text("80.0%")
    page.locator(".dot").first.click()
    expect(score).to_have_text("20.0%")
    assert page.locator("#grid button.cell.success:visible").count() == 2
    page.locator("#policy").select_option(label="p-200")
    expect(score).to_have_text("50.0%")
    assert page.locator(".tasks:visible").count() == 1


def test_nothing_of_the_run_is_executed(browse, tmp_path):
    nasty = episode(
        EVIL, 0, "error", policy=EVIL,
        error={"kind": EVIL, "message": EVIL, "stderr": EVIL + "\n" * 9},
        videos=("//evil.invalid/x.mp4", "javascript:alert(3)"), timings={EVIL: 1.0},
    )  # fmt: skip
    page = browse(Results((nasty,), 1, notes=(EVIL,), provenance={EVIL: EVIL}), tmp_path)
    page.locator("#grid button.cell").click()
    expect(page.get_by_role("dialog")).to_contain_text(EVIL)
    assert page.locator("img").count() == 0
    assert all("ERR_FILE_NOT_FOUND" in problem for problem in browse.seen.problems)
    browse.seen.problems.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_page_fits_its_screen_in_either_light(browse, run, tmp_path, scheme, viewport):
    long = episode("x" * 150, 0, "error", error={"message": "y" * 400})
    wide = Results((*run.episodes, long), 80, run.provenance, {}, run.wall, run.notes)
    page = browse(wide, tmp_path, viewport=viewport, color_scheme=scheme)
    page.locator("#policy").select_option(label="p-1")
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    page.locator("#grid button.cell.error:visible").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    light = page.evaluate("getComputedStyle(document.body).backgroundColor").count("247")
    assert (light > 0) == (scheme == "light")


def test_on_paper_the_page_is_light_and_without_controls(browse, run, tmp_path):
    page = browse(run, tmp_path, color_scheme="dark")
    page.emulate_media(media="print")
    white = "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == white
    expect(page.locator("#filters")).to_be_hidden()
    assert page.locator("#grid button.cell:visible").count() == 69


def test_five_thousand_episodes_stay_quick(browse, tmp_path):
    outcomes = ("success", "failure", "error")
    episodes = [
        episode(f"task-{t:02d}", n, outcomes[n % 7 % 3]) for t in range(50) for n in range(100)
    ]
    begin = time.monotonic()
    page = browse(Results(tuple(episodes), 5000), tmp_path)
    expect(page.locator("#found")).to_have_text("5,000 episodes")
    page.get_by_label("Filter episodes").fill("task-07")
    expect(page.locator("#found")).to_have_text("100 of 5,000 episodes")
    page.locator("#table thead th", has_text="Steps").get_by_role("button").click()
    assert time.monotonic() - begin < 15  # a second or two, on a machine that does other things

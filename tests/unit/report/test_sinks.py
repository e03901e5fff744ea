"""Every sink gets the same numbers; a missing one says how to get it.

The packages themselves are stood in for: what is tested is how they are called.
"""

import sys
from types import SimpleNamespace

import pytest

from polyarm.errors import MissingExtra, UnknownName
from polyarm.report.results import Results
from polyarm.report.sinks import metrics, report_to

PACKAGES = {"wandb": "wandb", "trackio": "trackio", "tensorboard": "tensorboard.summary"}


class Recording:
    """A module, a run and a writer in one, that remembers what it was asked to do."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return self

        return call

    def of(self, name):
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


@pytest.fixture
def sweep(results):
    parts = [
        results({"toy/a": letters}, policy=f"p-{step}") for step, letters in ((20, "sf"), (5, "ff"))
    ]
    return Results(
        tuple(one for part in parts for one in part.episodes), 4, options={"num_envs": 2}
    )


def test_metrics_hold_rates_with_intervals_overall_and_per_task(results):
    values = metrics(results({"toy/a": "sfe", "toy/b": "e"}, planned=5))
    assert values["overall/success_rate"] == 0.5
    assert values["overall/success_rate_low"] < 0.5 < values["overall/success_rate_high"]
    assert (values["overall/errors"], values["overall/missing"], values["overall/episodes"]) == (
        2,
        1,
        2,
    )
    assert values["task/toy/a/mean_steps"] == 10
    assert values["task/toy/a/mean_return"] == 1.5
    assert "task/toy/b/success_rate" not in values
    assert values["task/toy/b/errors"] == 1


def test_wandb_gets_a_point_per_checkpoint_in_rising_steps(sweep, tmp_path, monkeypatch):
    wandb = Recording()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    report_to("wandb", sweep, run_name="mine", folder=tmp_path)
    ((_, init),) = wandb.of("init")
    assert (init["name"], init["dir"]) == ("mine", str(tmp_path))
    assert init["config"]["options"] == {"num_envs": 2}
    logged = [(kwargs["step"], args[0]["overall/success_rate"]) for args, kwargs in wandb.of("log")]
    assert logged == [(5, 0.0), (20, 0.5)]
    assert wandb.calls[-1][0] == "finish"


def test_trackio_gets_the_same_points(sweep, tmp_path, monkeypatch):
    trackio = Recording()
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    report_to("trackio", sweep, run_name="mine", folder=tmp_path)
    assert [kwargs["step"] for _, kwargs in trackio.of("log")] == [5, 20]
    assert [name for name, _, _ in trackio.calls] == ["init", "log", "log", "finish"]


def test_tensorboard_gets_a_scalar_per_number_in_the_run_s_folder(sweep, tmp_path, monkeypatch):
    writer = Recording()
    folders = []
    summary = SimpleNamespace(Writer=lambda folder: folders.append(folder) or writer)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", summary)
    monkeypatch.setitem(sys.modules, "tensorboard", SimpleNamespace(summary=summary))
    report_to("tensorboard", sweep, run_name="mine", folder=tmp_path)
    assert folders == [str(tmp_path / "tensorboard" / "mine")]
    assert (("overall/success_rate", 0.5, 20), {}) in writer.of("add_scalar")
    assert writer.calls[-1][0] == "close"


def test_policies_without_a_step_are_logged_one_after_the_other(results, tmp_path, monkeypatch):
    wandb = Recording()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    two = results(policy="expert").episodes + results(policy="random").episodes
    report_to("wandb", Results(two, 6), run_name="mine", folder=tmp_path)
    assert [kwargs["step"] for _, kwargs in wandb.of("log")] == [0, 1]


@pytest.mark.parametrize("sink", list(PACKAGES))
def test_a_sink_that_is_not_installed_says_how_to_get_it(sink, results, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGES[sink], None)
    with pytest.raises(MissingExtra, match=f"pip install {sink}"):
        report_to(sink, results(), run_name="mine", folder=tmp_path)


def test_an_unknown_sink_shows_the_closest(results, tmp_path):
    with pytest.raises(UnknownName, match="did you mean 'wandb'"):
        report_to("wandbd", results(), run_name="mine", folder=tmp_path)

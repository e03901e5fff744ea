"""The shipped table is honest about its sources, and comparing warns where protocols differ."""

import pytest

from polyarm.errors import InvalidCall, UnknownName
from polyarm.report.published import compare_published, judge_published, published_scores
from polyarm.report.results import Results
from polyarm.suites.metaworld_tasks import SETS

SPATIAL = [f"libero/libero_spatial_{n}" for n in range(10)]


def test_every_score_names_its_source_and_is_a_rate():
    scores = published_scores()
    assert len(scores) > 30
    for name, score in scores.items():
        assert name == score.name
        assert 0 < score.rate < 1
        assert "arXiv:" in score.source or "repository" in score.source
        assert score.remarks
        assert score.matches


def test_known_numbers_are_those_of_the_papers():
    scores = published_scores()
    suites = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
    for policy, mean in {"openvla": 76.5, "openvla-oft": 97.1, "octo": 75.1, "pi0": 94.15}.items():
        rates = [100 * scores[f"{policy}/{suite}"].rate for suite in suites]
        assert sum(rates) / 4 == pytest.approx(mean, abs=0.051)


def test_a_run_by_the_same_protocol_agrees_without_a_warning(results):
    run = results(dict.fromkeys(SPATIAL, "s" * 49 + "f"), options={"max_steps": 220})
    found = judge_published(run, "openvla-oft/libero_spatial")
    assert found.inside
    assert found.warnings == ()
    assert found.verdict.startswith("Agrees with the published score: 98.0% here (95% interval")
    assert "against 97.6% published for openvla-oft/libero_spatial" in found.verdict


def test_a_run_that_falls_short_is_told_by_how_much(results):
    text = compare_published(
        results(dict.fromkeys(SPATIAL, "s" * 40 + "f" * 10)), "openvla-oft/libero_spatial"
    )
    assert text.startswith("Below the published score by −18 points")
    assert "p < 0.001" in text
    assert "arXiv:2502.19645" in text


def test_every_difference_of_protocol_is_told(episode):
    one = episode("metaworld/reach-v3", steps=300)
    two = episode("metaworld/reach-v3", 1, outcome="error")
    provenance = {"suites": {"metaworld": {"max_steps": 400}}}
    run = Results((one, two), planned=3, provenance=provenance)
    text = " ".join(judge_published(run, "openvla/libero_spatial").warnings)
    for words in (
        "1 of 1 tasks do not look like libero_spatial (such as metaworld/reach-v3)",
        "1 task here, 10 published",
        "2 episodes per task here, 50 published",
        "mean over 3 seeds",
        "400 steps here, 220",
        "1 episodes ended in an error",
        "1 episodes are missing",
    ):
        assert words in text


def test_what_a_source_does_not_say_is_told_too(results):
    text = " ".join(judge_published(results(), "pi0/libero_10").warnings)
    assert "does not say how many episodes" in text
    assert "does not give its horizon" in text


def test_an_unknown_name_shows_the_closest(results):
    with pytest.raises(UnknownName, match="did you mean 'openvla-oft/libero_spatial'"):
        compare_published(results(), "openvla-oft/libero_spatail")


def test_what_has_no_rate_cannot_be_compared(results):
    with pytest.raises(InvalidCall, match="nothing to compare"):
        compare_published(results({"toy/a": "e"}), "openvla/libero_goal")
    two = results(policy="p-1").episodes + results(policy="p-2").episodes
    with pytest.raises(InvalidCall, match="2 policies"):
        compare_published(Results(two, 6), "openvla/libero_goal")


@pytest.mark.parametrize("group", ["easy", "medium", "hard", "very_hard"])
def test_groups_of_meta_world_are_known_by_their_tasks(group):
    scores = [
        score for name, score in published_scores().items() if name.endswith(f"/metaworld_{group}")
    ]
    assert scores
    for score in scores:
        assert score.matches == tuple(f"metaworld/{task}" for task in SETS[group])

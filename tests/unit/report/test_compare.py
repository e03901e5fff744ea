"""Pairs are equal keys; verdicts are in words, and warn before they are believed."""

import json

import pytest

from polyarm.errors import InvalidCall
from polyarm.report.compare import compare, p_text, signed_points
from polyarm.report.results import Results


def test_a_clear_difference_is_called_by_its_name(results):
    a, b = results({"toy/a": "f" * 20 + "s" * 20}), results({"toy/a": "s" * 40})
    found = compare(a, b)
    assert found.verdict.startswith("B is better: +50 points (95% interval +31 to +64)")
    assert found.verdict.endswith(", p < 0.001, 40 paired episodes")
    assert compare(b, a).verdict.startswith("A is better: −50 points")


def test_no_difference_says_how_many_episodes_would_show_one(results):
    found = compare(results({"toy/a": "sfsfs"}), results({"toy/a": "sfsff"}))
    assert found.verdict.startswith("No real difference can be seen: −20 points")
    assert "to see a difference of 5 points you would need about 900 episodes" in found.verdict


def test_enough_pairs_say_that_a_difference_would_have_shown(results):
    run = results({"toy/a": "sf" * 400})
    verdict = compare(run, run).verdict
    assert "0 points" in verdict
    assert verdict.endswith("a difference of 5 points would most likely have shown")


def test_only_equal_keys_are_paired_and_errors_on_either_side_left_out(results):
    a = results({"toy/a": "ssef", "toy/only-a": "ss"})
    b = results({"toy/a": "sesfs"})
    found = compare(a, b)
    assert found.overall.a.episodes == found.overall.b.episodes == 2
    assert (found.errors, found.unpaired_a, found.unpaired_b) == (2, 2, 1)
    text = " ".join(found.warnings)
    assert "2 episodes were left out because A or B ended in an error" in text
    assert "1 episode was left out because only B has run it" in text


def test_the_order_of_the_episodes_does_not_matter(results):
    a, b = results({"toy/a": "sfsf", "toy/b": "ssff"}), results({"toy/a": "ffss", "toy/b": "ffff"})
    shuffled = Results(b.episodes[::-1], b.planned)
    assert compare(a, b) == compare(a, shuffled)


def test_tasks_are_judged_apart_with_p_values_adjusted_for_their_number(results):
    a = results({"toy/a": "f" * 6, "toy/b": "s" * 6})
    b = results({"toy/a": "s" * 6, "toy/b": "s" * 6})
    worse, same = compare(a, b).tasks
    assert (worse.name, worse.only_b, worse.a.rate, worse.b.rate) == ("toy/a", 6, 0, 1)
    assert worse.p == pytest.approx(2 * 2 / 2**6)
    assert same.p == 1


def test_differing_fingerprints_are_listed_and_warned_about(results):
    a = results(provenance={"mujoco": "3.3.0", "git": {"commit": "a", "dirty": False}})
    b = results(
        provenance={"mujoco": "3.3.0", "git": {"commit": "b", "dirty": False}, "gpu": "H200"}
    )
    found = compare(a, b)
    assert found.changed == (("git.commit", "a", "b"), ("gpu", "(absent)", "H200"))
    assert "The fingerprints differ in git.commit, gpu" in found.warnings[0]
    assert compare(a, a).warnings == ()


def test_another_policy_in_the_fingerprint_is_listed_but_no_reason_to_warn(results):
    a, b = (results(provenance={"policy": {"weights": weights}}) for weights in ("x", "y"))
    found = compare(a, b)
    assert found.changed == (("policy.weights", "x", "y"),)
    assert found.warnings == ()


def test_runs_of_one_policy_pair_whatever_its_name(results):
    assert compare(results(policy="old"), results(policy="new")).overall.a.episodes == 3


def test_runs_of_several_policies_pair_within_the_same_name(results):
    many = [one for name in ("p-1", "p-2") for one in results(policy=name).episodes]
    run = Results(tuple(many), 6)
    assert compare(run, run).overall.a.episodes == 6
    with pytest.raises(InvalidCall, match="only policies of the same name are paired"):
        compare(run, results(policy="p-3"))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ({"toy/a": "ss"}, {"toy/b": "s"}, r"A has 2 \(such as toy/a#0\) and B has 1 \(such as"),
        ({"toy/a": "e"}, {"toy/a": "s"}, "all 1 episodes that A and B share errored"),
    ],
)
def test_without_pairs_there_is_nothing_to_compare(results, a, b, words):
    with pytest.raises(InvalidCall, match=words):
        compare(results(a), results(b))


def test_a_comparison_is_plain_json(results):
    data = json.loads(json.dumps(compare(results(), results()).to_json(), allow_nan=False))
    assert data["schema"] == 1
    assert data["overall"]["difference"]["estimate"] == 0
    assert data["verdict"] == data["overall"]["verdict"]


def test_numbers_are_written_as_papers_write_them():
    assert [signed_points(x) for x in (0.12, -0.005, 0, 0.123, 0.2)] == [
        "+12",
        "−0.5",
        "0",
        "+12",
        "+20",
    ]
    assert [p_text(p) for p in (0.0001, 0.0042, 0.61)] == ["p < 0.001", "p = 0.004", "p = 0.61"]

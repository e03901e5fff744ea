"""``polyarm report`` and ``polyarm compare``, as the command runs them."""

import json

import pytest
import tyro

from polyarm.cli import compare, report
from polyarm.cli.compare import CompareOptions
from polyarm.cli.report import ReportOptions
from polyarm.errors import InvalidCall, UnknownName


def parse(options, *arguments):
    return tyro.cli(options, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))


def test_report_writes_both_files_and_shows_the_rates(results, tmp_path, capsys):
    run = results({"toy/a": "ssf", "toy/[b]": "e"}, planned=6)
    assert report.run(parse(ReportOptions, str(tmp_path)), lambda folder: run) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "report.html"}
    out = capsys.readouterr().out
    for words in (
        "toy/a",
        "66.7%",
        "toy/[b]",
        str(tmp_path / "report.html"),
        "2 of 6 episodes are",
    ):
        assert words in out


def test_compare_shows_tasks_verdict_and_warnings(results, tmp_path, capsys):
    results({"toy/a": "sf", "toy/b": "ss"}, provenance={"gpu": "[A]"}).write(tmp_path / "a")
    results({"toy/a": "ss", "toy/b": "ss"}, provenance={"gpu": "[B]"}).write(tmp_path / "b")
    options = parse(CompareOptions, str(tmp_path / "a"), str(tmp_path / "b"))
    assert compare.run(options) == 0
    out = capsys.readouterr().out
    for words in ("toy/a", "overall", "No real difference can be seen", "gpu: [A] → [B]"):
        assert words in out


def test_compare_as_json_is_json_and_nothing_else(results, tmp_path, capsys):
    results().write(tmp_path)
    compare.run(parse(CompareOptions, str(tmp_path), str(tmp_path), "--json"))
    assert json.loads(capsys.readouterr().out)["overall"]["p"] == 1
    compare.run(parse(CompareOptions, str(tmp_path), "--published", "pi0/libero_goal", "--json"))
    assert json.loads(capsys.readouterr().out)["score"]["rate"] == 0.958


def test_compare_with_a_published_score_names_the_source(results, tmp_path, capsys):
    results().write(tmp_path)
    compare.run(parse(CompareOptions, str(tmp_path), "--published", "openvla/libero_goal"))
    out = capsys.readouterr().out
    assert "arXiv:2406.09246" in out
    assert "Note: 1 task here, 10 published." in out


def test_compare_wants_exactly_one_other_side(tmp_path):
    for options in (CompareOptions("a"), CompareOptions("a", "b", "pi0/libero_10")):
        with pytest.raises(InvalidCall, match="polyarm compare A B"):
            compare.run(options)


def test_a_wrong_published_name_is_told_before_the_run_is_read(tmp_path):
    with pytest.raises(UnknownName, match="pi0/libero_10"):
        compare.run(CompareOptions(str(tmp_path / "nothing"), published="pi0/libero_11"))

import inspect
import pickle

import pytest

from polyarm import errors

EXCEPTIONS = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, Exception)
]


@pytest.mark.parametrize("error", EXCEPTIONS)
def test_every_exception_has_the_one_root(error):
    assert issubclass(error, errors.PolyarmError)


@pytest.mark.parametrize("error", [e for e in EXCEPTIONS if e is not errors.PolyarmError])
def test_every_exception_refines_a_builtin(error):
    builtins = [base for base in error.__mro__ if base.__module__ == "builtins"]
    assert builtins[0] is not Exception


@pytest.mark.parametrize("error", EXCEPTIONS)
def test_the_tree_at_the_top_of_the_file_names_every_exception(error):
    assert error.__name__ in (errors.__doc__ or "")


def test_an_unknown_name_lists_the_closest_first():
    error = errors.UnknownName("task", "reach-v2", ["pick-v3", "reach-v3", "door-open-v3"])
    assert "unknown task 'reach-v2'; did you mean 'reach-v3'" in str(error)
    assert str(error).index("reach-v3") < str(error).index("door-open-v3")


def test_a_long_list_of_valid_names_is_cut_and_counted():
    error = errors.UnknownName("task", "zzz", [f"task-{number:03}" for number in range(100)])
    assert "(100 in all)" in str(error)
    assert len(str(error)) < 300


def test_the_list_of_valid_names_is_a_sentence_of_its_own():
    assert str(errors.UnknownName("fruit", "x", ["apple"])) == "unknown fruit 'x'. Valid: apple."


def test_a_name_that_is_surely_meant_comes_before_those_that_are_close():
    error = errors.UnknownName("task", "mt10", ["mt11"]).meaning(["metaworld/mt10"])
    assert str(error) == "unknown task 'mt10'; did you mean 'metaworld/mt10'? Valid: mt11."
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_hint_closes_the_message():
    assert str(errors.UnknownName("task", "x", [], "Look again.")).endswith("Look again.")


OF_MORE_THAN_A_MESSAGE = (errors.UnknownName, errors.EnvCallError)


@pytest.mark.parametrize("error", [e for e in EXCEPTIONS if e not in OF_MORE_THAN_A_MESSAGE])
def test_an_exception_survives_the_way_between_processes(error):
    copy = pickle.loads(pickle.dumps(error("what happened")))
    assert type(copy) is error
    assert str(copy) == "what happened"


def test_an_unknown_name_survives_the_way_between_processes():
    error = errors.UnknownName("camera", "fornt", ["front", "wrist"], "Look again.")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is errors.UnknownName
    assert str(copy) == str(error)


def test_what_envs_raised_survives_the_way_between_processes():
    failure = errors.SlotError("exception", 3, "toy/count-3", "call", 0, "raised KeyError")
    copy = pickle.loads(pickle.dumps(errors.EnvCallError("length", [failure])))
    assert type(copy) is errors.EnvCallError
    assert str(copy) == f"length: {failure}"
    assert copy.failures == (failure,)


def test_a_slot_error_tells_the_whole_story():
    error = errors.SlotError(
        kind="died",
        slot=3,
        task="toy/count-3",
        phase="step",
        step=1,
        message="worker died",
        pid=42,
        signal="SIGSEGV",
        stack="File x.py, line 1\n",
        stderr="boom\n",
    )
    for part in ("slot 3", "toy/count-3", "pid 42", "phase step", "SIGSEGV", "x.py", "boom"):
        assert part in str(error)


def test_a_slot_error_without_a_signal_or_output_is_one_line():
    error = errors.SlotError("exception", 0, "toy/count-3", "reset", 0, "raised ValueError")
    assert str(error).count("\n") == 0
    assert "[" not in str(error)

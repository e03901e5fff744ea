from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from polyarm.contracts import EpisodeKey
from polyarm.rollout.schedule import Schedule


def keys(task, number):
    return [EpisodeKey("toy", task, index) for index in range(number)]


def test_a_slot_prefers_the_task_it_has():
    schedule = Schedule([*keys("a", 2), *keys("b", 2)])
    assert schedule.next("toy/b") == EpisodeKey("toy", "b", 0)
    assert schedule.next("toy/a") == EpisodeKey("toy", "a", 0)
    assert schedule.next("toy/b") == EpisodeKey("toy", "b", 1)


def test_a_slot_whose_task_is_done_helps_the_one_furthest_behind():
    schedule = Schedule([*keys("a", 2), *keys("b", 5), *keys("c", 3)])
    assert schedule.next("toy/none").task == "b"
    assert schedule.next("toy/none").task == "c"  # three wait for nobody, four for one slot


def test_nothing_waits_when_everything_runs():
    schedule = Schedule(keys("a", 1))
    schedule.next("toy/a")
    assert schedule.next("toy/a") is None
    assert schedule.waiting == 0


def test_a_failed_episode_runs_again_first_and_gives_up_in_the_end():
    schedule = Schedule(keys("a", 3), max_attempts=2)
    first = schedule.next("toy/a")
    assert schedule.failed(first)
    assert schedule.next("toy/a") == first
    assert schedule.attempts(first) == 2
    assert not schedule.failed(first)


def test_a_neighbours_fault_is_not_charged():
    schedule = Schedule(keys("a", 1), max_attempts=2)
    for _ in range(10):
        key = schedule.next("toy/a")
        assert schedule.failed(key, charged=False)
    assert schedule.attempts(schedule.next("toy/a")) == 11


def test_a_neighbour_that_never_stops_crashing_ends_an_episode_all_the_same():
    schedule = Schedule(keys("a", 1), max_attempts=2)
    for _ in range(19):
        assert schedule.failed(schedule.next("toy/a"), charged=False)
    assert not schedule.failed(schedule.next("toy/a"), charged=False)


def test_an_endless_source_is_drawn_from_as_needed():
    drawn = itertools.count()
    schedule = Schedule(
        (EpisodeKey("toy", "a", next(drawn)) for _ in itertools.count()), lookahead=3
    )
    for index in range(5):
        assert schedule.next("toy/a").index == index
    assert next(drawn) <= 8


def test_a_dropped_task_has_nothing_left():
    schedule = Schedule([*keys("a", 3), *keys("b", 1)])
    schedule.next("toy/a")
    assert schedule.drop("toy/a") == keys("a", 3)[1:]
    assert schedule.next("toy/a").task == "b"
    assert schedule.next("toy/a") is None


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), unique=True, max_size=15),
    st.lists(st.sampled_from("abcx"), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_every_episode_ends_exactly_once_whatever_fails(pairs, slots, random):
    planned = [EpisodeKey("toy", task, index) for task, index in pairs]
    schedule = Schedule(planned, max_attempts=3)
    running, ended = {}, []
    while True:
        for slot, task in enumerate(slots):
            if slot not in running and (key := schedule.next(f"toy/{task}")) is not None:
                running[slot] = key
        if not running:
            break
        key = running.pop(random.choice(list(running)))
        if random.random() < 0.3 and schedule.failed(key, charged=random.random() < 0.5):
            continue
        schedule.finished(key)
        ended.append(key)
    assert sorted(ended) == sorted(planned)

"""What is filmed follows from what is named and from what suites choose."""

import pytest

from polyarm.errors import InvalidCall
from polyarm.rollout.filming import cameras_to_film, plan_film
from polyarm.rollout.suite_settings import specs

TOY = specs(["toy/count-3"])


def test_cameras_are_those_that_are_named_or_the_suite_s_choice():
    assert cameras_to_film(("wrist",), "toy") == ("wrist",)
    assert cameras_to_film((), "toy") == ("front",)
    assert cameras_to_film((), "gym") == ()


def test_a_film_says_what_make_vec_is_told(tmp_path):
    film = plan_film(TOY, (), tmp_path, (0,), fps=30.0, stride=2)
    assert film.cameras == ("front",)
    arguments = film.make_arguments()
    assert arguments["observer"] == "polyarm.recording.video:video_recorder"
    assert arguments["observed_slots"] == (0,)
    video = arguments["observer_options"]
    assert (video["folder"], video["fps"], video["stride"]) == (str(tmp_path / "videos"), 30.0, 2)


@pytest.mark.parametrize(
    ("tasks", "how", "complaint"),
    [
        (["gym/CartPole-v1"], {}, "gym/CartPole-v1 cannot be filmed: envs of gym have no"),
        (["toy/count-3"], {"fps": 0.0}, "fps is 0.0"),
        (["toy/count-3"], {"layout": "above"}, "unknown layout 'above'"),
    ],
)
def test_what_cannot_be_filmed_is_refused(tasks, how, complaint, tmp_path):
    with pytest.raises(InvalidCall, match=complaint):
        plan_film(specs(tasks), (), tmp_path, None, **how)

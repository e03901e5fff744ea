"""Ranks wait for those that have not come, as long as they are to, and no longer."""

import signal
import socket

import pytest
from launching import Command

from polyarm.distributed import meeting
from polyarm.distributed.meeting import meet
from polyarm.distributed.ranks import Rank
from polyarm.errors import InvalidCall, RankLost, StoppedEarly

pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")


@pytest.fixture(autouse=True, scope="module")
def first_store():
    """PyTorch opens a pipe with the first one, and keeps it."""
    from torch.distributed import TCPStore

    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def place():
    """Where nobody listens yet."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.mark.parametrize(
    ("number", "complaint"),
    [(0, "of 3 ranks, rank 1, rank 2 have not come within 2 s"), (1, "nobody has answered at 127")],
)
def test_ranks_that_do_not_come_are_named(place, monkeypatch, number, complaint):
    monkeypatch.setattr(meeting, "_WITHIN_S", 2.0)
    with pytest.raises(RankLost, match=complaint):
        meet(Rank(number, 3), lambda: False, place)


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_waits_is_stopped_at_once(place, number):
    asked = []
    with pytest.raises(StoppedEarly, match="stopped while waiting"):
        meet(Rank(number, 2), lambda: asked.append(None) or len(asked) > 2, place)
    assert len(asked) == 3


def test_a_place_that_is_taken_is_told_as_such():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        with pytest.raises(InvalidCall, match=rf"cannot meet at 127.0.0.1:{port}.*MASTER_PORT"):
            meet(Rank(0, 2), lambda: False, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})


def test_ranks_that_nobody_tells_where_to_meet_are_refused():
    with pytest.raises(InvalidCall, match="MASTER_ADDR and MASTER_PORT, found '' and ''"):
        meet(Rank(0, 2), lambda: False, {})


WAITING = """
import signal
import sys

from polyarm.distributed import meeting
from polyarm.distributed.ranks import Rank

port, within_s = sys.argv[1:]
meeting._WITHIN_S = float(within_s)
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))


def stopping():
    print("asked", flush=True)
    return bool(stopped)


place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
try:
    meeting.meet(Rank(1, 2), stopping, place)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("within_s", "said"),
    [("300", "StoppedEarly stopped while waiting"), ("0.1", "RankLost who listens at 127.0.0.1:")],
)
def test_a_rank_ends_in_time_where_somebody_listens_and_says_nothing(tmp_path, within_s, said):
    (tmp_path / "waiting.py").write_text(WAITING)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        words = ["waiting", str(silent.getsockname()[1]), within_s]
        with Command(words, {}, tmp_path) as rank:
            if within_s == "300":
                assert rank.stdout.readline() == "asked\n"
                rank.send_signal(signal.SIGTERM)
            code, out, err = rank.end()
    assert code == 0, err
    assert out.splitlines()[-1].startswith(said)

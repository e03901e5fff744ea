"""Model servers of vla-eval that fail: clear errors, an intact journal, and a run that goes on."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from functools import partial

import evaluation_faults as faults
import numpy as np
import pytest
import vla_eval_server
from vla_eval_server import Serving, TinyModel

from polyarm.contracts import Batch
from polyarm.errors import PolicyError
from polyarm.policies.connections import Patience
from polyarm.policies.vla_eval import VlaEvalPolicy
from polyarm.rollout.evaluate import evaluate

pytestmark = pytest.mark.usefixtures("plan")

PATIENCE = Patience(start_s=0.5, open_s=20.0, reply_s=30.0)
EPISODES = 8
IN_PROCESS = {"episodes": EPISODES, "num_envs": 2, "num_workers": 0}


def looks(obs, _):
    """What a model makes of an observation: a chunk of three."""
    state = obs["state"]
    return np.stack([np.tanh(state[:2] + step) for step in range(3)]).astype(np.float32)


class Looking:
    """The same model as a policy of ours, three actions per observation."""

    row_independent = True

    def begin(self, episodes):
        pass

    def act(self, batch: Batch):
        return np.stack([looks({"state": row}, None) for row in batch.obs])


Server = partial(faults.ServerProcess, vla_eval_server.__file__)


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_a_model_behind_vla_evals_server_plays_the_very_same_episodes(tmp_path, chunk_size):
    """Whether the server sends whole chunks, or hands them out one action at a time."""
    expected = faults.undisturbed(faults.GAMBLE, EPISODES, Looking())
    options = {"episodes": EPISODES, "num_envs": 4, "out": tmp_path / "out"}

    def model():
        return TinyModel(looks, params={"send_state": True}, chunk_size=chunk_size)

    with Serving(model()) as one, Serving(model()) as two:
        name = f"vla-eval:{one.address},{two.address}"
        results = evaluate(name, faults.GAMBLE, **options)
        for server in (one, two):
            starts = [event for event in server.model.events if event[0] == "start"]
            assert 0 < len(starts) < EPISODES
            assert len(server.model.sessions) <= 4  # connections are used again
        # A server names no checkpoint: another address may be another model.
        refusal = faults.conflict(f"vla-eval:{two.address}", faults.GAMBLE, **options)
        assert "addresses" in refusal
    assert faults.scores(results.episodes) == expected
    assert not [each for each in threading.enumerate() if each.name.startswith("polyarm-")]


def test_a_server_that_is_killed_in_mid_request_ends_the_run_which_goes_on_when_it_is_back(
    tmp_path,
):
    """What it remembered is gone, so nothing is sent again in the middle of an episode."""
    options = {**IN_PROCESS, "out": tmp_path / "out"}
    with Server(fatal=14) as server:
        with (
            VlaEvalPolicy([server.address], patience=PATIENCE) as policy,
            pytest.raises(PolicyError, match=r"broke|no policy server at") as caught,
        ):
            evaluate(policy, faults.GAMBLE, **options)
        assert server.wait(20) == -signal.SIGKILL
    assert f"callable/{faults.GAMBLE}#" in str(caught.value)
    assert 0 < faults.lines(options["out"]) < EPISODES
    faults.assert_each_once(options["out"])
    with (
        Server(server.port) as server,
        VlaEvalPolicy([server.address], patience=PATIENCE) as policy,
    ):
        results = evaluate(policy, faults.GAMBLE, **options)
    faults.assert_each_once(options["out"])
    assert faults.scores(results.episodes) == faults.undisturbed_zeros(EPISODES)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("error", "observation_failed: FloatingPointError: the model is tired"),
        ("garbage", "bytes that are no message"),
        ("size", r"actions (have|of) shape .*7\)"),
        ("nan", r"action\[1\] = nan at step 0 of the chunk is not finite"),
        ("hang", "has not answered within 1 s"),
    ],
)
def test_a_server_that_fails_ends_the_run_which_goes_on_when_it_is_mended(
    tmp_path, monkeypatch, fault, message
):
    out, mended = tmp_path / "out", threading.Event()

    def zeros(obs, _):
        if mended.is_set() or len(model.asked) <= 12:
            return np.zeros((3, 2), np.float32)
        match fault:
            case "error":
                raise FloatingPointError("the model is tired")
            case "garbage":
                garble.setattr("vla_eval.model_servers.serve.pack_message", lambda _: b"\xc1")
            case "size":
                return np.zeros((3, 7), np.float32)
            case "nan":
                return np.array([[0, np.nan]] * 3)
            case "hang":
                assert mended.wait(20)
        return np.zeros((3, 2), np.float32)

    model = TinyModel(zeros)
    options = {**IN_PROCESS, "out": out}
    patience = replace(PATIENCE, reply_s=1.0) if fault == "hang" else PATIENCE
    with Serving(model) as server:
        with (
            pytest.MonkeyPatch.context() as garble,
            VlaEvalPolicy([server.address], patience=patience) as policy,
        ):
            with pytest.raises(PolicyError, match=message) as caught:
                evaluate(policy, faults.GAMBLE, **options)
            mended.set()
        assert "episode" in str(caught.value)
        assert 0 < faults.lines(out) < EPISODES
        faults.assert_each_once(out)
        assert not (out / ".rank0.lock").exists()
        with VlaEvalPolicy([server.address], patience=PATIENCE) as policy:
            results = evaluate(policy, faults.GAMBLE, **options)
    faults.assert_each_once(out)
    assert faults.scores(results.episodes) == faults.undisturbed_zeros(EPISODES)


def test_the_command_plays_what_a_server_says(tmp_path):
    with Serving(TinyModel(looks)) as server:
        name = f"vla-eval:{server.address}@send_state=true"
        options = ("--policy", name, "--task", faults.GAMBLE, "--episodes", "2", "--num-envs", "2")
        code, said = faults.run(tmp_path / "out", *options)
    assert code == 0, said
    expected = faults.undisturbed(faults.GAMBLE, 2, Looking())
    assert faults.in_journal(tmp_path / "out") == expected

"""Policies behind a socket that fail: clear errors, an intact journal, and a run that goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial

import evaluation_faults as faults
import numpy as np
import openpi_double
import pytest
from gymnasium import spaces
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from openpi_double import Close, Garbage, Hang, OpenPIServer

from polyarm.errors import PolicyError
from polyarm.policies.connections import Patience
from polyarm.policies.websocket import OpenPIPolicy
from polyarm.rollout.evaluate import evaluate
from polyarm.serving.options import ServeOptions
from polyarm.serving.server import serving

pytestmark = pytest.mark.usefixtures("plan")

BOX = spaces.Box(-1, 1, (2,), np.float32)
PLAIN = ServeOptions(port=0, mapping="plain")
PATIENCE = Patience(start_s=0.5, open_s=20.0, reply_s=30.0)
EPISODES = 8


def zeros(_):
    return {"actions": np.zeros((3, 2), np.float32)}


Double = partial(faults.ServerProcess, openpi_double.__file__)


class Serve(subprocess.Popen):
    """``polyarm serve``, in a session of its own; killed at the latest when its block ends."""

    def __init__(self, *arguments: str) -> None:
        path = os.pathsep.join([str(faults.SOURCES), str(faults.HERE)])
        super().__init__(
            [sys.executable, "-m", "polyarm", "serve", "--port", "0", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=faults.HERE,
            env={**os.environ, "PYTHONPATH": path},
        )

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.communicate()

    def address(self) -> str:
        line = self.stderr.readline()
        assert " at ws://" in line, line + self.stderr.read()
        return line.partition(" at ")[2].split()[0]


def test_a_policy_behind_polyarm_serve_plays_the_very_same_episodes(tmp_path):
    options = {"episodes": EPISODES, "num_envs": 4, "out": tmp_path / "out"}
    with serving(faults.Gambler(), BOX, PLAIN) as one, serving(faults.Gambler(), BOX, PLAIN) as two:
        name = f"openpi:{one.address},{two.address}"
        results = evaluate(name, faults.GAMBLE, **options)
        assert faults.scores(results.episodes) == faults.undisturbed(faults.GAMBLE, EPISODES)
        # The same policy at another address goes on; another policy there would not.
        more = {**options, "episodes": EPISODES + 2}
        results = evaluate(f"openpi:{two.address}", faults.GAMBLE, **more)
        assert faults.scores(results.episodes) == faults.undisturbed(faults.GAMBLE, EPISODES + 2)
    with serving(faults.OtherGambler(), BOX, PLAIN) as other:
        refusal = faults.conflict(f"openpi:{other.address}", faults.GAMBLE, **more)
        assert "served" in refusal
    assert not [each for each in threading.enumerate() if each.name.startswith("polyarm-")]


def test_a_server_that_is_killed_in_mid_request_and_comes_back_costs_nothing(tmp_path, caplog):
    back = []
    with Double(fatal=9) as first:

        def bring_back():
            first.wait()
            back.append(Double(first.port))

        watching = threading.Thread(target=bring_back)
        watching.start()
        try:
            policy = OpenPIPolicy([first.address], "plain")
            with policy:
                results = evaluate(policy, faults.GAMBLE, episodes=EPISODES, num_envs=2)
        finally:
            first.kill()
            watching.join(20)
            for each in back:
                each.__exit__()
    assert first.returncode == -signal.SIGKILL
    assert "the connection broke" in caplog.text
    assert faults.scores(results.episodes) == faults.undisturbed_zeros(EPISODES)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("error", "FloatingPointError: the model is tired"),
        ("garbage", "bytes that are no message"),
        ("size", r"shape"),
        ("hang", "has not answered within 3 s"),
        ("close", "broke 3 times in one request"),
    ],
)
def test_a_server_that_fails_ends_the_run_which_goes_on_when_it_is_mended(tmp_path, fault, message):
    out, mended, asked = tmp_path / "out", threading.Event(), []

    def infer(obs):
        asked.append(obs)
        if mended.is_set() or len(asked) <= 12:
            return zeros(obs)
        match fault:
            case "error":
                raise FloatingPointError("the model is tired")
            case "garbage":
                raise Garbage
            case "hang":
                raise Hang
            case "close":
                raise Close
        return {"actions": np.zeros((3, 7), np.float32)}

    options = {"episodes": EPISODES, "num_envs": 2, "out": out}
    with OpenPIServer(infer) as server:
        patience = replace(PATIENCE, reply_s=3.0) if fault == "hang" else PATIENCE
        with OpenPIPolicy([server.address], "plain", patience=patience) as policy:
            with pytest.raises(PolicyError, match=message) as caught:
                evaluate(policy, faults.GAMBLE, **options)
            # One episode, or the first of two that asked together.
            assert f"callable/{faults.GAMBLE}#" in str(caught.value)
        assert 0 < faults.lines(out) < EPISODES
        faults.assert_each_once(out)
        assert not (out / ".rank0.lock").exists()
        mended.set()
        with OpenPIPolicy([server.address], "plain", patience=PATIENCE) as policy:
            results = evaluate(policy, faults.GAMBLE, **options)
    faults.assert_each_once(out)
    assert faults.scores(results.episodes) == faults.undisturbed_zeros(EPISODES)


def test_a_polyarm_server_that_dies_in_mid_episode_ends_the_run_which_goes_on_with_another(
    tmp_path,
):
    """What it remembered is gone, so no request is sent again in the middle of an episode."""
    out = tmp_path / "out"
    options = {"episodes": EPISODES, "num_envs": 2, "out": out}
    arguments = ("--policy", faults.GAMBLER, "--action-size", "2", "--mapping", "plain")
    with Serve(*arguments) as server:
        policy = OpenPIPolicy([server.address()], patience=PATIENCE)
        act, asked = policy.act, []

        def act_until_it_is_killed(batch):
            asked.append(batch)
            if faults.lines(out) >= 2 and batch.steps.all():
                server.kill()
                server.wait()
            return act(batch)

        policy.act = act_until_it_is_killed
        with policy, pytest.raises(PolicyError, match="what the server remembers of it is lost"):
            evaluate(policy, faults.GAMBLE, **options)
    assert 2 <= faults.lines(out) < EPISODES
    with Serve(*arguments) as server:
        with OpenPIPolicy([server.address()]) as policy:
            results = evaluate(policy, faults.GAMBLE, **options)
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    faults.assert_each_once(out)
    assert faults.scores(results.episodes) == faults.undisturbed(faults.GAMBLE, EPISODES)


def test_both_commands_with_a_key_a_wrong_one_and_none(tmp_path, monkeypatch):
    key = tmp_path / "key"
    key.write_text("secret\n")
    arguments = ("--policy", "zero", "--action-size", "2", "--chunk", "3", "--mapping", "plain")
    out = tmp_path / "out"
    with Serve(*arguments, "--api-key-file", str(key)) as server:
        address = server.address()
        command = ("--policy", f"openpi:{address}", "--task", faults.GAMBLE, "--episodes", "4")
        monkeypatch.setenv("POLYARM_API_KEY", "guess")
        code, said = faults.run(out, *command)
        assert code == 2
        assert f"polyarm: {address} refuses the API key we sent" in said
        assert "Traceback" not in said
        monkeypatch.setenv("POLYARM_API_KEY", "secret")
        code, said = faults.run(out, *command, "--num-envs", "2")
        assert code == 0, said
        faults.assert_each_once(out)
        client = WebsocketClientPolicy(address, api_key="secret")
        assert client.infer({"state": np.zeros(3)})["actions"].shape == (3, 2)
        client._ws.close()
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0
        assert "answering what was asked" in server.stderr.read()


def test_a_signal_lets_the_server_answer_what_was_asked(tmp_path, wait_until):
    (tmp_path / "slow_policy.py").write_text(
        "import pathlib, time\nimport numpy as np\n"
        "def act(batch):\n"
        "    pathlib.Path('asked').touch()\n"
        "    while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
        "    return np.ones((len(batch), 2), np.float32)\n"
    )
    command = [sys.executable, "-m", "polyarm", "serve", "--port", "0", "--policy"]
    command += ["slow_policy:act", "--action-size", "2", "--mapping", "plain"]
    server = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(faults.SOURCES)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        client = WebsocketClientPolicy(Serve.address(server))
        replies = []
        asking = threading.Thread(
            target=lambda: replies.append(client.infer({"state": np.zeros(3)}))
        )
        asking.start()
        wait_until((tmp_path / "asked").exists)
        server.send_signal(signal.SIGTERM)
        assert "answering what was asked" in server.stderr.readline()
        assert server.poll() is None
        (tmp_path / "go").touch()
        asking.join(20)
        np.testing.assert_array_equal(replies[0]["actions"], [[1, 1]])
        assert server.wait(20) == 0
        client._ws.close()
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "zero"], "--task TASK, or --action-size N"),
        (["--policy", "zero", "--task", "gym/CartPole-v1"], "give --action-size"),
        (["--policy", "zero", "--action-size", "0"], "action-size must be at least 1"),
        (["--policy", "expert", "--action-size", "2"], "expert acts inside its env"),
        (["--policy", "zero", "--action-size", "2", "--mapping", "libro"], "did you mean 'libero'"),
        (["--policy", "zero", "--action-size", "2", "--api-key-file", "/nowhere"], "cannot read"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_message(capsys, arguments, message):
    from polyarm.cli.main import main

    with pytest.raises(SystemExit) as leaving:
        main(["serve", *arguments])
    assert leaving.value.code == 2
    assert message in capsys.readouterr().err

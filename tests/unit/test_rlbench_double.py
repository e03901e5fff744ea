"""The double of RLBench keeps the real one's contract; each simulator gets a process of its own."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DOUBLE = Path(__file__).parents[1] / "rlbench_double"
POSES = ("EndEffectorPoseViaIK", "EndEffectorPoseViaPlanning")
FAULT = "The call failed on the V-REP side. Return value: -1"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the fake CoppeliaSim, as the simulator writes into it."""
    return shutil.copytree(DOUBLE / "coppeliasim", tmp_path_factory.mktemp("root") / "coppeliasim")


@contextmanager
def x_server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    if shutil.which("Xvfb") is None:
        pytest.skip("Xvfb is not installed; get it with: apt-get install xvfb")
    command = ["Xvfb", "-displayfd", "1", "-nolisten", "tcp", "-screen", "0", "64x64x24"]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as server:
        try:
            yield f":{server.stdout.readline().decode().strip()}", server
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def display() -> Iterator[str]:
    with x_server() as (name, _):
        yield name


def start(code: str, root: Path, **variables: str) -> subprocess.Popen[str]:
    clean = {key: value for key, value in os.environ.items() if key != "DISPLAY"}
    clean |= {"PYTHONPATH": str(DOUBLE), "COPPELIASIM_ROOT": str(root)}
    if "DISPLAY" not in variables:
        clean["QT_QPA_PLATFORM"] = "offscreen"
    return subprocess.Popen(
        [sys.executable, "-c", "from double_session import *\n" + textwrap.dedent(code)],
        env=clean | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def check(name: str) -> str:
    """A script that asserts what it is named for."""
    return (DOUBLE / "checks" / f"{name}.py").read_text()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def run(code: str, root: Path, **variables: str) -> str:
    """What a process prints that has to end well."""
    status, out, err = finish(start(code, root, **variables))
    assert status == 0, err
    return out


def test_names_defaults_and_lookups_are_those_of_rlbench(root):
    run(check("names"), root)


def test_observations_have_the_real_fields_shapes_and_dtypes(root, display):
    run(check("observations"), root, DISPLAY=display)


def test_steps_and_errors_are_those_of_rlbench(root):
    run(check("steps"), root)


def test_poses_that_cannot_be_reached_raise_and_others_are_reached(root):
    run(check("poses"), root)


def test_an_episode_can_end_without_success(root):
    code = """
    env, task = make("pick_up_cup", arms.EndEffectorPoseViaPlanning())
    pose = task.reset()[1].gripper_pose
    cup = task._task.cup2.get_position()
    _, reward, terminate = task.step(np.array([*cup, *pose[3:], 1]))
    assert reward == 0.0 and terminate and not task._task.success()[0]
    """
    run(code, root)


def test_a_live_demo_can_be_replayed_by_poses(root):
    processes = [start(check("replay"), root, MODE=mode) for mode in POSES]
    for status, _, err in [finish(process) for process in processes]:
        assert status == 0, err


def test_stored_demos_are_read_and_replayed_by_joints(root, tmp_path):
    command = [sys.executable, "-m", "double_dataset", str(tmp_path), "reach_target"]
    subprocess.run(
        [*command, "--episodes", "1:2"],
        env={**os.environ, "PYTHONPATH": str(DOUBLE), "COPPELIASIM_ROOT": str(root)},
        check=True,
        timeout=60,
    )
    for folder in ("variation1/episodes/episode1", "all_variations/episodes/episode1"):
        assert (tmp_path / "reach_target" / folder / "low_dim_obs.pkl").exists()
    code = f"""
    import pickle
    from pathlib import Path

    tree = Path({str(tmp_path)!r}, "reach_target", "all_variations", "episodes", "episode0")
    assert pickle.loads((tree / "variation_number.pkl").read_bytes()) == 1
    env, task = make("reach_target", arms.JointPosition(), dataset_root={str(tmp_path)!r})
    task.set_variation(1)
    caught(RuntimeError, task.get_demos, 3)
    demos = task.get_demos(-1, random_selection=False)
    assert len(demos) == 2 and demos[0].random_seed is not None
    task.reset_to_demo(demos[1])
    for obs in demos[1]._observations[1:]:
        task.step(np.append(obs.joint_positions, obs.gripper_open))
    assert task._task.success()[0]
    """
    run(code, root)


def test_episodes_depend_on_the_global_seed_alone(root):
    code = """
    env, task = make("pick_up_cup")
    task.reset()
    if os.environ["ORDER"] == "another":
        task.step(STILL)
        task.reset()
    np.random.seed(3)
    print(task.sample_variation(), *map(vars, task.reset()[1:]))
    print(vars(task.step(np.append(np.full(7, 0.2), 0))[0]))
    """
    processes = [start(code, root, ORDER=order) for order in ("one", "another")]
    (status, first, err), (_, second, _) = (finish(process) for process in processes)
    assert status == 0, err
    assert first == second


def test_without_a_display_the_process_aborts_and_frames_need_one(root):
    code = "make(cameras=['front'])[1].reset()"
    missing = start(code, root, DISPLAY="", QT_QPA_PLATFORM="xcb")
    wrong = start("make()", root, DISPLAY=":9999")
    offscreen = start(code, root)
    for process in (missing, wrong):
        status, _, err = finish(process)
        assert status == -signal.SIGABRT
        assert "could not connect to display" in err
        assert "no Qt platform plugin could be initialized" in err
    assert finish(offscreen)[0] == -signal.SIGSEGV


def test_the_end_of_the_x_server_is_the_end_of_the_process(root):
    code = "make(cameras=['front'])[1].reset(); print('up', flush=True); time.sleep(60)"
    with x_server() as (name, server):
        process = start(code, root, DISPLAY=name)
        assert process.stdout.readline() == "up\n"
        server.kill()
        status, _, err = finish(process)
        assert status == 1
        assert "The X11 connection broke" in err
        number = name.removeprefix(":")
        for left in (f"/tmp/.X{number}-lock", f"/tmp/.X11-unix/X{number}"):
            Path(left).unlink(missing_ok=True)


def test_what_hangs_can_only_be_killed(root):
    process = start(check("hangs"), root)
    try:
        hanging = dict(process.stdout.readline().split() for _ in range(7))
        # From the launch on, signals are swallowed.
        launched = [int(pid) for name, pid in hanging.items() if name != "hang_launch"]
        for number in (signal.SIGTERM, signal.SIGINT):
            for pid in launched:
                os.kill(pid, number)
        ended, *_ = select.select([process.stdout], [], [], 0.5)
        assert not ended, process.stdout.readline()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_signal_is_swallowed_and_fails_the_next_call(root):
    code = """
    task = make()[1]
    task.reset()
    os.kill(os.getpid(), signal.SIGTERM)
    print(caught(RuntimeError, task.step, STILL))
    """
    assert FAULT in run(code, root)


ABORTED = "*** buffer overflow detected ***: terminated"
SWITCHES = {
    "abort_launch": (-signal.SIGABRT, ABORTED),
    "abort_step=2.3@{marker}": (-signal.SIGABRT, ABORTED),
    "segv_step=1.2": (-signal.SIGSEGV, ""),
    "fault_step=3": (1, FAULT),
    "fault_reset=2": (1, FAULT),
    "handle": (1, "Handle Panda does not exist."),
    "no_place=2": (1, "Could not place the task reach_target in the scene."),
    "no_such_word": (1, "RLBENCH_DOUBLE has no switch 'no_such_word'"),
}


def test_switches_fail_when_asked_to_and_once_with_a_marker(root, tmp_path):
    wanted = {word.format(marker=tmp_path / "marker"): end for word, end in SWITCHES.items()}
    once = next(word for word in wanted if "@" in word)
    ends = run(check("faults"), root, SWITCHES=json.dumps([*wanted, once])).splitlines()
    assert json.loads(ends.pop()) == [once, 0, ""]
    for word, status, said in map(json.loads, ends):
        assert status == wanted[word][0], said
        assert wanted[word][1] in said


def test_demos_can_fail_resets_can_be_slow_and_steps_can_cost(root):
    code = """
    task = make()[1]
    caught(RuntimeError, lambda: task.get_demos(1, live_demos=True, max_attempts=1))
    assert len(task.get_demos(1, live_demos=True, max_attempts=1)) == 1
    began = time.perf_counter()
    task.reset()
    assert time.perf_counter() - began > 0.02
    os.environ["DOUBLE_STEP_S"] = "0.05"
    began = time.process_time()
    task.step(STILL)
    assert time.process_time() - began >= 0.05
    """
    run(code, root, RLBENCH_DOUBLE="bad_demo=1,slow_reset=0.02")


def test_the_library_has_to_be_found_before_python_starts(root):
    switch = {"RLBENCH_DOUBLE": "loader"}
    status, _, err = finish(start("", root, **switch))
    assert status == 1
    assert "libcoppeliaSim.so.1: cannot open shared object file" in err
    found = {"LD_LIBRARY_PATH": str(root), "QT_QPA_PLATFORM_PLUGIN_PATH": str(root)}
    run("make()", root, **switch, **found)

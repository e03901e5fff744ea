"""RIPT-VLA's runner: its words and results, played by polyarm's runner in one pool of envs.

All tasks share ``num_parallel_envs`` slots. A slot that has ended its episode takes the next one,
of whatever task, and each episode has an action queue of its own; so no env waits for another.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from polyarm import registry
from polyarm.compat.ript.benchmark import Benchmark
from polyarm.compat.ript.episodes import EpisodeForm
from polyarm.compat.ript.keys import KeyMaker, Planned, checked_states
from polyarm.compat.ript.policies import as_ript_policy
from polyarm.compat.ript.pool import Pool, TaskEnv
from polyarm.compat.ript.results import Tally
from polyarm.contracts import EpisodeKey, Policy
from polyarm.errors import InvalidCall, WorkerError
from polyarm.policies.loading import load_policy
from polyarm.rollout.acting import check_specs
from polyarm.rollout.episode import RunningEpisode
from polyarm.rollout.options import EvalOptions
from polyarm.rollout.plan import group_tasks
from polyarm.suites.libero.protocols import GRIPPERS
from polyarm.suites.libero.suite import ORIENTATIONS

log = logging.getLogger("polyarm.compat.ript")

CAMERAS = ("agentview", "robot0_eye_in_hand")
CreatedEnv = tuple[TaskEnv, int, int]
Rollouts = Generator[tuple[bool, float, dict[str, Any]], None, None]


class LiberoRunner:
    """Plays a policy in the tasks of one of LIBERO's suites.

    Args:
        benchmark_name: ``"libero_spatial"``, ``"LIBERO_GOAL"`` …
        rollouts_per_env: Episodes of each task.
        num_parallel_envs: Episodes that run at once, of all tasks together.
        max_episode_length: Policy steps of an episode; by default the protocol's.
        task_names_to_use: Tasks that `run` plays; all of them if there are none.
        use_laplace_sampling: How an ``OpenVLA_OFT_Policy`` is asked.
        scale_factor: Likewise.
        rank: Of this process: ranks that play the same task never share policy noise.
        world_size: How many ranks there are, to check ``rank`` against.
        protocol: Whose rules the envs follow: ``"ript-oft"``, ``"ript-quest"``, ``"openpi"`` …
        seed: Selects the stream of episodes.
        execute: Actions executed before the policy is asked again; by default all it returns.
        image_size: Rendered height and width; by default the protocol's.
        display: As for `polyarm.make_vec`.
        suite_options: Further options of the LIBERO suite, such as ``{"settle_steps": 20}``.

    Attributes:
        benchmark: Task names and initial states, as LIBERO's own object has them.
        env_names: All task names.
        env_names_to_run: Those that `run` plays.
        max_episode_length: Policy steps of an episode.

    Raises:
        UnknownName: There is no such benchmark, task, protocol or option.
        InvalidCall: A number is out of range.
    """

    _raw_observations = False

    def __init__(  # noqa: PLR0913  RIPT-VLA's own parameters, and ours by keyword
        self,
        benchmark_name: str,
        rollouts_per_env: int,
        num_parallel_envs: int,
        max_episode_length: int | None = None,
        task_names_to_use: Sequence[str] | None = (),
        *,
        use_laplace_sampling: bool = False,
        scale_factor: float = 1.0,
        rank: int = 0,
        world_size: int | None = None,
        protocol: str = "ript-oft",
        seed: int = 0,
        execute: int | None = None,
        image_size: tuple[int, int] | None = None,
        display: str = "auto",
        suite_options: Mapping[str, Any] | None = None,
    ) -> None:
        _check_count("rollouts_per_env", rollouts_per_env)
        _check_count("num_parallel_envs", num_parallel_envs)
        if max_episode_length is not None:
            _check_count("max_episode_length", max_episode_length)
        if rank < 0 or (world_size is not None and rank >= world_size):
            raise InvalidCall(f"rank is at least 0 and below world_size={world_size}, found {rank}")
        self.benchmark = Benchmark(benchmark_name)
        self.benchmark_name = self.benchmark.name
        self.env_names = self.benchmark.get_task_names()
        chosen = {self.benchmark.find(name) for name in task_names_to_use or self.env_names}
        self.env_names_to_run = [self.env_names[index] for index in sorted(chosen)]
        self.rollouts_per_env = rollouts_per_env
        self.num_parallel_envs = num_parallel_envs
        self.rank, self.world_size = rank, world_size
        self._sampling = {
            "use_laplace_sampling": use_laplace_sampling,
            "scale_factor": scale_factor,
        }
        settings = dict(suite_options or {})
        if max_episode_length is not None:
            settings["max_steps"] = max_episode_length
        options = EvalOptions(
            protocol=protocol,
            num_envs=num_parallel_envs,
            seed=seed,
            execute=execute,
            cameras=CAMERAS,
            image_size=image_size,
            display=display,
            suite_options=tuple(f"{name}={value}" for name, value in settings.items()),
        )
        (group,) = group_tasks([f"libero/{self.benchmark_name}"], options)
        self._spec = group.specs[0]
        self.max_episode_length: int = self._spec.options["max_steps"]
        self._pool = Pool(options, group)
        self._keys = KeyMaker(seed, rank)
        self._random = np.random.default_rng([seed, rank])
        self._loaded: dict[str, Policy] = {}

    # What RIPT-VLA's scripts call.

    def create_env(self, env_name: str | int) -> CreatedEnv:
        """Start envs and keep them alive until the returned one is closed.

        All tasks share the envs: creating one for each task costs no more than the first.

        Returns:
            What ``created_env`` takes: the env, the task's number, and how many run at once.
        """
        env_id = self.benchmark.find(env_name)
        env_num = min(self.num_parallel_envs, self.rollouts_per_env)
        (first,) = self._keys.scored(self.benchmark.task_name(env_id), 1)
        return self._pool.create(self.env_names[env_id], env_num, first), env_id, env_num

    def run_policy_in_env(
        self,
        env_name: str | int,
        policy: Any = None,
        all_init_states: Any = None,
        render: bool = False,  # noqa: FBT001, FBT002
        created_env: CreatedEnv | None = None,
        random_init: bool = False,  # noqa: FBT001, FBT002
    ) -> Rollouts:
        """Play ``rollouts_per_env`` episodes of a task and keep all that happened in them.

        Every call has new policy noise, also for initial states that were played before.

        Args:
            env_name: The task's name or number.
            policy: What acts.
            all_init_states: Where the episodes begin, in turn, ``(n, 1 + nq + nv)``; by default the
                task's own initial states. Equal ones are repeats of one episode.
            render: Whether episodes have ``render``: the frames of all inferences, upright.
            created_env: From `create_env`; it keeps the envs alive afterwards.
            random_init: Begin in initial states of the task that are drawn by chance.

        Returns:
            A generator of ``(success, total_reward, episode)``, in the order of the initial states
            and not in that of their ends, which would favour short episodes. See ``docs/ript.md``
            for the episode's dictionary. An episode whose simulator fails again and again is left
            out, with a warning.

        Raises:
            UnknownName: There is no such task.
            InvalidCall: The initial states are none of this task.
        """
        env_id = self.benchmark.find(env_name)
        _check_created(created_env, env_id)
        planned = self._planned(env_id, all_init_states, random_init=random_init)
        return self._rollouts(self.acting(policy), planned, self._form(env_id, render=render))

    def run(
        self,
        policy: Any = None,
        n_video: int = 0,
        do_tqdm: bool = False,  # noqa: FBT001, FBT002
        save_video_fn: Callable[[Any, str, int], Any] | None = None,
        run_env_names: Sequence[str] | None = None,
        created_envs: Sequence[CreatedEnv] | None = None,
    ) -> dict[str, Any]:
        """Score a policy: the same episodes with the same noise at every call.

        Args:
            policy: What acts.
            n_video: How many episodes of each task are filmed, a frame for each inference.
            do_tqdm: Show a progress bar.
            save_video_fn: Called with each film, uint8 ``(T, 3, H, W)``, the task's name and the
                episode's number; without it, films are in ``rollout_videos``.
            run_env_names: Tasks to play instead of ``env_names_to_run``.
            created_envs: From `create_env`; they keep the envs alive afterwards.

        Returns:
            ``rollout``: ``overall_success_rate``, ``overall_average_reward``,
            ``environments_solved``, ``rollout_count`` and ``rollout_errors``, which are in no other
            number; and ``rollout_success_rate`` by task.

        Raises:
            WorkerError: No episode of a task could be brought to its end.
        """
        names = self.env_names_to_run if run_env_names is None else run_env_names
        ids = [self.benchmark.find(name) for name in names]
        if not ids:
            raise InvalidCall("there is no task to run: run_env_names is empty")
        tasks = {self.benchmark.task_name(env_id): env_id for env_id in ids}
        keys = [key for task in tasks for key in self._keys.scored(task, self.rollouts_per_env)]
        acting = self.acting(policy)
        tally = Tally({task: self.env_names[env_id] for task, env_id in tasks.items()}, n_video)
        playing = closing(self._pool.play(acting, Planned(tuple(keys)), keep=n_video > 0))
        with _progress(len(keys), shown=do_tqdm) as advance, playing as episodes:
            for episode in episodes:
                form = self._form(tasks[episode.key.task], render=True)
                tally.enter(episode, form, save_video_fn)
                advance()
        return tally.output()

    def close(self) -> None:
        """Close all envs, and the connections of policies that run elsewhere."""
        self._pool.close()
        for policy in self._loaded.values():
            if callable(close := getattr(policy, "close", None)):
                close()
        self._loaded.clear()

    def __enter__(self) -> LiberoRunner:
        self._pool.hold()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.release()
        self.close()

    # Playing.

    def _rollouts(self, acting: Policy, planned: Planned, form: EpisodeForm) -> Rollouts:
        played, told = 0, ""
        with closing(self._pool.play(acting, planned, keep=True)) as playing:
            for episode in _in_order(playing, planned.keys):
                result = episode.result
                assert result is not None
                if result.outcome == "error":
                    told = result.error.get("message", "")
                    log.warning("leaving out %s, whose simulator failed: %s", result.key, told)
                    continue
                played += 1
                written = form.write(episode.trajectory())
                yield result.outcome == "success", result.total_reward, written
        if not played:
            raise WorkerError(f"no episode of {planned.keys[0].name} came to its end: {told}")

    def acting(self, policy: Any = None) -> Policy:
        """The policy as polyarm asks it; one that has a name is loaded once.

        Raises:
            PolicyError: It is none, or was not made for these envs.
        """
        if policy is None:
            raise InvalidCall("there is no policy: give the one that acts")
        if isinstance(policy, str):
            if policy not in self._loaded:
                description = registry.load("libero").describe(self._spec)
                assert description is not None
                self._loaded[policy] = load_policy(policy, description.action_space)
            policy = self._loaded[policy]
        acting = as_ript_policy(policy, sampling=self._sampling)
        check_specs(acting, [self._spec])
        return acting

    def _planned(self, env_id: int, states: Any, *, random_init: bool) -> Planned:
        task, count = self.benchmark.task_name(env_id), self.rollouts_per_env
        if states is None and not random_init:
            return self._keys.fresh(task, range(count))
        table = self.benchmark.get_task_init_states(env_id)
        if random_init:
            return self._keys.fresh(task, self._random.integers(len(table), size=count).tolist())
        given = checked_states(states, table, self.env_names[env_id])
        return self._keys.of_states(task, given, table, count)

    def _form(self, env_id: int, *, render: bool) -> EpisodeForm:
        options = self._spec.options
        return EpisodeForm(
            task_id=env_id,
            grip=GRIPPERS[options["gripper"]],
            turned=ORIENTATIONS[options["orientation"]],
            raw=self._raw_observations,
            render=render,
        )


def _in_order(
    playing: Iterator[RunningEpisode], keys: Sequence[EpisodeKey]
) -> Iterator[RunningEpisode]:
    """Episodes in the order of their keys, each as soon as those before it have ended."""
    waiting, ended = deque(keys), dict[EpisodeKey, RunningEpisode]()
    for episode in playing:
        ended[episode.key] = episode
        while waiting and waiting[0] in ended:
            yield ended.pop(waiting.popleft())


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidCall(f"{name} must be a whole number from 1 on, found {value!r}")


def _check_created(created: CreatedEnv | None, env_id: int) -> None:
    if created is not None and created[1] != env_id:
        raise InvalidCall(
            f"created_env is of task {created[1]} ({created[0].name}), but task {env_id} is to be"
            f" played; create_env gives one for each task"
        )


@contextmanager
def _progress(total: int, *, shown: bool) -> Iterator[Callable[[], Any]]:
    if not shown:
        yield lambda: None
        return
    from rich.progress import Progress

    with Progress() as bar:
        task = bar.add_task("episodes", total=total)
        yield lambda: bar.advance(task)

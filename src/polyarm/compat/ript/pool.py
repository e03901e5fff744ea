"""The envs of a runner: one pool for all its tasks, alive as long as somebody holds it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator

from polyarm.compat.ript.keys import Planned
from polyarm.contracts import EpisodeKey, Policy
from polyarm.errors import InvalidCall
from polyarm.rollout.acting import own_execute
from polyarm.rollout.episode import EpisodeOptions, RunningEpisode
from polyarm.rollout.live_envs import LiveEnvs, Need
from polyarm.rollout.options import EvalOptions
from polyarm.rollout.plan import Group
from polyarm.rollout.runner import Runner, RunnerOptions
from polyarm.rollout.schedule import Schedule

log = logging.getLogger("polyarm.compat.ript")


class TaskEnv:
    """A hold on a runner's envs, so that they stay alive between calls; see ``create_env``.

    Attributes:
        name: The task it was created for.
        num_envs: How many of its episodes run at once at most.
    """

    def __init__(self, name: str, num_envs: int, release: Callable[[], None]) -> None:
        self.name = name
        self.num_envs = num_envs
        self._release: Callable[[], None] | None = release

    def close(self) -> None:
        """Let go; the envs are closed when nobody holds them any more."""
        release, self._release = self._release, None
        if release is not None:
            release()


class Pool:
    """Envs that take on any task of a group.

    Args:
        options: How they are made, and how many.
        group: The tasks.
    """

    def __init__(self, options: EvalOptions, group: Group) -> None:
        self._options = options
        self._group = group
        self._envs = LiveEnvs(options, None, None)
        self._holds = 0
        self._playing = False

    def create(self, name: str, num_envs: int, first: EpisodeKey) -> TaskEnv:
        """Start envs, of the first episode's task unless some are running, and hold them."""
        self.hold()
        env = TaskEnv(name, num_envs, self.release)
        try:
            self._envs.get(self._group, Need(frames=True, missing=num_envs), [first])
        except BaseException:
            env.close()
            raise
        return env

    def play(
        self, acting: Policy, planned: Planned, *, keep: bool
    ) -> Generator[RunningEpisode, None, None]:
        """Episodes as they end; when this is exhausted or closed, the envs are idle again.

        Args:
            acting: What acts.
            planned: The episodes.
            keep: Whether to keep all that happens in them, frames included.

        Raises:
            InvalidCall: Others are being played.
        """
        if self._playing:
            raise InvalidCall(
                "this runner is playing: exhaust or close() the generator of the earlier"
                " run_policy_in_env first, or make another runner"
            )
        self.hold()
        self._playing = True
        try:
            frames = keep or bool(getattr(acting, "needs_frames", True))
            env = self._envs.get(self._group, Need(frames, len(planned.keys)), planned.keys)
            options = RunnerOptions(
                episode=EpisodeOptions(self._options.execute or own_execute(acting), None, keep),
                reset_options=planned.reset_options,
            )
            runner = Runner(env, acting, Schedule(planned.keys), options)
            try:
                for episode in runner.episodes():
                    if episode is not None:
                        _tell(episode)
                        yield episode
            finally:
                runner.drain()
        finally:
            self._playing = False
            self.release()

    def hold(self) -> None:
        """Keep the envs alive."""
        self._holds += 1

    def release(self) -> None:
        """Undo a `hold`; with the last one the envs are closed."""
        self._holds -= 1
        if not self._holds:
            self.close()

    def close(self) -> None:
        """Close the envs, whoever holds them."""
        self._envs.close()


def _tell(episode: RunningEpisode) -> None:
    result = episode.result
    assert result is not None
    log.info("%s: %s after %d steps", result.key, result.outcome, result.steps)
    log.debug("%s took %s", result.key, dict(result.timings))

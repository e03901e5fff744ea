"""A training from its first update to its last, over interruptions, ranks and evaluations."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyarm.distributed.members import starter_of, succession, why_not_anew
from polyarm.distributed.ranks import Rank, Share
from polyarm.distributed.torchrun import ProcessGroup, process_group
from polyarm.errors import InvalidCall, PolicyError, StoppedEarly
from polyarm.policies.torch import weights_digest
from polyarm.rollout.options import seconds
from polyarm.training.checkpoints import (
    NAME,
    read_checkpoint,
    require_same,
    was_written_by,
    write_checkpoint,
)
from polyarm.training.devices import chosen_device, require_gpus_apart, threads
from polyarm.training.held_out import HeldOutEvaluation
from polyarm.training.logbook import Logbook
from polyarm.training.options import TrainOptions
from polyarm.training.play import Play, all_tasks, training_settings
from polyarm.training.policy import TrainedPolicy, meaning_of
from polyarm.training.ppo import Learner, Update
from polyarm.vector.tensors import import_torch, is_gpu

Show = Callable[[Update], None]


class Stop:
    """Asks a training to write a checkpoint and end after its current update.

    An evaluation under way is cut short, and does not count.
    """

    def __init__(self) -> None:
        self.asked = False
        self._end: float | None = None

    def __call__(self) -> None:
        """Ask."""
        self.asked = True

    def after(self, limit_s: float | None) -> None:
        """Ask when so many seconds have passed from now on."""
        self._end = None if limit_s is None else time.monotonic() + limit_s

    @property
    def time_is_up(self) -> bool:
        """Whether they have."""
        return self._end is not None and time.monotonic() > self._end


@dataclass(frozen=True, slots=True)
class Training:
    """What was done.

    Attributes:
        updates: Those of this call, in order.
        resumed: The update it went on from; 0 if it started anew.
        exact: Whether it went on exactly where the checkpoint was.
        device: Where the policy computed.
        policy: What was learnt.
        stopped: Whether it ended before its last update, because it was asked to or time was up.
        steps: Env steps of all envs together, since the first update.
        errors: Episodes cut short by a failing env or worker, since the first update.
        asked: Whether it was asked to: on any rank, so that all say the same.
        last_error: What cut the last one of the failed episodes short; "" if none has failed.
    """

    updates: tuple[Update, ...]
    resumed: int
    exact: bool
    device: str
    policy: TrainedPolicy
    stopped: bool
    steps: int
    errors: int
    asked: bool = False
    last_error: str = ""


def train(
    options: TrainOptions,
    progress: Show = lambda _: None,
    *,
    stop: Stop | None = None,
    share: Share | None = None,
) -> Training:
    """Train a policy with PPO.

    Under torchrun every rank calls it; only the first one writes files and calls ``progress``.

    Args:
        options: What to run; without ``out``, nothing is written.
        progress: Called after every update.
        stop: Ends it early, with a checkpoint.
        share: This rank's part of the envs; by default what torchrun says.

    Raises:
        MissingExtra: PyTorch, or a dashboard's package, is not installed.
        StoppedEarly: It was stopped while it waited for the other ranks, or for its folder.
        RankLost: Another rank has ended, or has not come.
        UnknownName: A suite, task or option does not exist.
        InvalidCall: The options make no sense, or the envs' spaces are not supported; or a job that
            was queued again would start over.
        RunConflict: The folder holds another training, or is in use by one.
        PolicyError: Rewards, observations or gradients are no finite numbers.
    """
    options.check()
    share, stop = share or Share.current(options), stop or Stop()
    stop.after(seconds(options.stop_after))
    if options.fresh and (why := why_not_anew(alone=share.rank.world == 1)) is not None:
        raise InvalidCall(why)
    import_torch()
    all_tasks(options, share), training_settings(options)  # what they name must be there
    with ExitStack() as stack:
        # First of all: a rank that ends from now on is noticed by the others at once.
        group = stack.enter_context(process_group(share.rank, lambda: stop.asked))
        book = None
        with group.together():
            if options.out is not None and group.leads:
                book = _logbook(Path(options.out), options, share.rank, stop)
                stack.callback(book.close)
        # The workers are there before anything asks for a GPU. Those of evaluations, and those that
        # replace others, come later: they are forked by a process that never loads CUDA.
        play = stack.enter_context(Play(options, share))
        device = chosen_device(options.device)
        require_gpus_apart(device, group)
        if is_gpu(device):
            stack.enter_context(group.over_gpus())
        held_out = HeldOutEvaluation(options, share, lambda: stop.asked or stop.time_is_up)
        stack.enter_context(held_out)
        usual = stack.enter_context(threads(1))
        learner = Learner(options, play, group, device=device, usual_threads=usual)
        return _Run(options, learner, group, book, held_out, stop).to_the_end(progress)


def _logbook(folder: Path, options: TrainOptions, rank: Rank, stop: Stop) -> Logbook:
    def waiting() -> None:
        if stop.asked:
            raise StoppedEarly(f"stopped while waiting for {folder}; nothing was begun")

    def fresh() -> bool:
        # A job that was restarted, or is one of a chain, goes on with what it has begun.
        return options.fresh and not was_written_by(folder / NAME, starter_of(rank))

    return Logbook(folder, options, succession(rank), fresh=fresh, waiting=waiting)


class _Run:
    """A learner, what it is examined by, and where it is written down."""

    def __init__(
        self,
        options: TrainOptions,
        learner: Learner,
        group: ProcessGroup,
        book: Logbook | None,
        held_out: HeldOutEvaluation,
        stop: Stop,
    ) -> None:
        self._options, self._learner, self._group = options, learner, group
        self._book, self._held_out, self._stop = book, held_out, stop
        self._policy = TrainedPolicy(learner.agent, meaning_of(learner.play.envs.specs))
        self._path = None if options.out is None else Path(options.out, NAME)
        self._before_s = 0.0

    def to_the_end(self, progress: Show) -> Training:
        options, learner = self._options, self._learner
        began = time.perf_counter()
        first, exact = self._go_on()
        if self._book is not None:
            self._book.go_on_after(first)
        updates: list[Update] = []
        stopping = asked = False
        for number in range(first + 1, options.train_updates + 1):
            update = learner.update(number)
            last = number == options.train_updates
            due = options.checkpoint_every and number % options.checkpoint_every == 0
            if options.eval_every and (number % options.eval_every == 0 or last):
                if due:  # what was learnt is worth more than what an evaluation may run into
                    self._save(update, self._before_s + time.perf_counter() - began)
                update = self._evaluated(update)
            spent = self._before_s + time.perf_counter() - began
            update = replace(update, train_s=spent)
            updates.append(update)
            if self._book is not None:
                self._book.enter(update)
            if self._group.leads:
                progress(update)
            stopping, asked = self._agreed_to_stop()
            if due or stopping or last:
                self._save(update, spent)
            if stopping:
                break
        return Training(
            updates=tuple(updates),
            resumed=first,
            exact=exact,
            device=str(learner.agent.device),
            policy=self._policy,
            stopped=stopping and not last,
            steps=learner.steps,
            errors=learner.errors,
            asked=asked,
            last_error=learner.play.last_error,
        )

    def _evaluated(self, update: Update) -> Update:
        """With how held-out episodes went."""
        score = self._held_out.score(self._policy, self._group)
        judged = score.success_rate if self._learner.play.judges else None
        return replace(
            update,
            eval_success=judged,
            eval_return=score.mean_return,
            eval_errors=score.errors,
        )

    def _agreed_to_stop(self) -> tuple[bool, bool]:
        """Whether all ranks end after this update, and whether any of them was asked to.

        A rank that is asked from now on was asked too late to be the reason.
        """
        flags = import_torch().tensor([float(self._stop.asked), float(self._stop.time_is_up)])
        self._group.total([flags])
        asked, out_of_time = (flags > 0).tolist()
        return asked or out_of_time, asked

    # The checkpoint.

    def _save(self, update: Update, spent_s: float) -> None:
        self._require_equal_weights()
        learner, path = self._learner, self._path
        if path is None:
            return
        own = {"play": learner.play.state_dict(), "generator": learner.generator.get_state()}
        ranks = self._group.gather(own)
        if self._book is not None:
            progress = {"update": update.number, "train_s": spent_s}
            saved = {
                "options": self._options.shaping(),
                "meaning": meaning_of(learner.play.envs.specs),
                "progress": progress,
                "ranks": ranks,
                "job": starter_of(self._group.rank),
                **learner.state_dict(),
            }
            write_checkpoint(path, saved)
            self._book.draw()

    def _require_equal_weights(self) -> None:
        weights = self._learner.agent.state_dict()["weights"]
        digests = self._group.gather(weights_digest(weights))
        if len(set(digests)) > 1:
            raise PolicyError(f"ranks hold different weights, which must not be: {digests}")

    def _go_on(self) -> tuple[int, bool]:
        """Take over the checkpoint, if there is one; gives its update, and if that was exact."""
        learner, group = self._learner, self._group
        saved: dict[str, Any] | None = None
        parts: list[Any] = []
        with group.together():
            if group.leads:
                saved, parts = self._checkpoint()
        # The first rank's, for all of them: others may not see its folder, or not as it is now.
        saved = group.from_first(saved)
        if saved is None:
            learner.play.begin()
            return 0, True
        own = group.deal(parts)
        learner.load_state_dict(saved)
        self._before_s = float(saved["progress"]["train_s"])
        number = int(saved["progress"]["update"])
        if own is not None and saved["world"] == group.rank.world:
            learner.generator.set_state(own["generator"])
            exact = learner.play.load_state_dict(own["play"], update=number)
        else:
            learner.reseed(number)
            learner.play.begin(after=own and own["play"], update=number)
            exact = False
        return number, all(group.gather(exact))

    def _checkpoint(self) -> tuple[dict[str, Any] | None, list[Any]]:
        """What all ranks go on from, and each one's own part; None where nothing was written."""
        path, world = self._path, self._group.rank.world
        if self._book is not None:
            self._book.begin_anew()
        if path is None or not path.is_file():
            return None, []
        saved = read_checkpoint(path)
        require_same(saved, self._options, path)
        ranks = saved.pop("ranks")
        parts = [ranks[number] if number < len(ranks) else None for number in range(world)]
        return {**saved, "world": len(ranks)}, parts

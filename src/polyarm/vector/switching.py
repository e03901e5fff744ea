"""Slots on their way to another task, waited for or in the background."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium
from gymnasium import spaces

from polyarm.errors import SlotError
from polyarm.vector.commands import Commands
from polyarm.vector.engine import Done, Engine
from polyarm.vector.interrupts import HandlersWait
from polyarm.vector.ledger import Ledger
from polyarm.vector.plans import SlotPlan
from polyarm.vector.settings import SlotSettings


class BatchFit:
    """Whether envs can share a batch.

    Args:
        settings: What all slots share.
        observation: Observation space of the first env.
        action: Its action space.
    """

    def __init__(
        self,
        settings: SlotSettings,
        observation: gymnasium.Space[Any],
        action: gymnasium.Space[Any],
    ) -> None:
        self._settings = settings
        self._action = action
        self._layout = settings.layout(observation, action)

    def __call__(self, observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> bool:
        """Whether an env with these spaces fits."""
        layout = self._settings.layout(observation, action)
        if layout.digest() != self._layout.digest() or action != self._action:
            return False
        pairs = zip(layout.observation, self._layout.observation, strict=True)
        return all(_alike(mine.space, other.space) for mine, other in pairs)


def _alike(one: gymnasium.Space[Any], other: gymnasium.Space[Any]) -> bool:
    """Whether values of one space mean the same in the other; Boxes may have other bounds."""
    return type(one) is type(other) and (isinstance(one, spaces.Box) or one == other)


@dataclass(frozen=True, slots=True)
class _Switch:
    """A switch in the background.

    Attributes:
        then: Called when the slot holds its new env.
        before: What it held before.
        misfit: On the way back: why, which is delivered then.
    """

    then: Callable[[], None]
    before: SlotPlan
    misfit: SlotError | None = None


class Switches:
    """Gives slots other envs and checks that these fit the batch.

    Args:
        engine: What holds the envs.
        commands: What keeps track of answers.
        ledger: Who is pending.
        fits: Whether an env with these spaces can share the batch.
    """

    def __init__(
        self,
        engine: Engine,
        commands: Commands,
        ledger: Ledger,
        fits: BatchFit,
    ) -> None:
        self._engine = engine
        self._commands = commands
        self._ledger = ledger
        self._fits = fits
        self._underway: dict[int, _Switch] = {}
        self.unsure = False
        """Whether a switch in the background was interrupted as it began or ended."""

    def run(self, plans: Mapping[int, SlotPlan]) -> dict[int, str]:
        """Have slots hold other envs; waits, and returns what is wrong with which."""
        problems = {}
        self._commands.calling = set(plans)
        for slot, plan in plans.items():
            self._commands.begin_switch(slot, plan)
        for slot, failure in self._commands.switched():
            problem = str(failure) if failure is not None else self._misfit(slot)
            if problem:
                problems[slot] = problem
        return problems

    def begin(self, slot: int, plan: SlotPlan, then: Callable[[], None]) -> None:
        """Have a slot hold another env, and call ``then`` when it does."""
        self.unsure = True
        self._ledger.pending[slot] = None
        self._underway[slot] = _Switch(then, self._engine.plans[slot])
        self._commands.begin_switch(slot, plan)
        self.unsure = False

    def settle(self) -> bool:
        """Act on slots whose new envs have come.

        One that has failed is among the answers; its slot has its old env back, or will have.

        Returns:
            Whether there were any, so that fewer answers are there than it seemed.
        """
        if not self._underway:
            return False
        answers = [answer for answer in self._engine.done if answer[0] in self._underway]
        self.unsure = True
        for answer in answers:
            if (then := self._arrived(answer)) is not None:
                then()
        self.unsure = False
        return bool(answers)

    def _arrived(self, answer: Done) -> Callable[[], None] | None:
        """What follows a switch; None after one that failed and after the way back."""
        slot, failure = answer
        with HandlersWait():
            switch = self._underway.pop(slot)
            if failure is not None:
                return None
            self._engine.done.remove(answer)
            if switch.misfit is not None:
                self._engine.done.append((slot, switch.misfit))
                return None
        if not (problem := self._misfit(slot)):
            return switch.then
        task = self._engine.plans[slot].spec.name
        misfit = SlotError("exception", slot, task, "build", 0, problem)
        return partial(self._go_back, slot, replace(switch, misfit=misfit))

    def _go_back(self, slot: int, switch: _Switch) -> None:
        """Have a slot hold what it held before, and then deliver why."""
        self._underway[slot] = switch
        self._commands.begin_switch(slot, switch.before)

    def recover(self) -> None:
        """Slots whose switch was interrupted, and that owe no answer, are pending no longer."""
        owing, pending = self._engine.owing(), self._ledger.pending
        self._ledger.pending = {slot: pending[slot] for slot in pending if slot in owing}
        for slot in self._underway.keys() - owing:
            del self._underway[slot]
        self.unsure = False

    def _misfit(self, slot: int) -> str:
        found = self._engine.letter(slot)["description"]
        observation, action = found["observation_space"], found["action_space"]
        if self._fits(observation, action):
            return ""
        return f"its spaces differ from the batch's: {observation}, {action}"

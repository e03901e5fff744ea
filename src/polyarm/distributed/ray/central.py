"""One policy for all nodes: an actor that gathers what they ask and decides about it at once.

A node asks about all of its rows that are ready, and waits; so as soon as every node that plays
has asked, nobody else will, and the policy decides. The policy is only ever called by one thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from polyarm.contracts import Batch, EpisodeKey, Policy, PolicyOutput, to_host
from polyarm.distributed.ray.cluster import ray_library, why
from polyarm.distributed.ray.node import stand_in
from polyarm.distributed.ray.trees import concatenated
from polyarm.errors import InvalidCall, PolicyError
from polyarm.policies.loading import fits_any_space
from polyarm.rollout.acting import Policies, known_space
from polyarm.rollout.plan import Group

_TRAITS = ("row_independent", "needs_frames", "execute", "expert_steps")
_GENERATORS = "polyarm/generators"


@dataclass(slots=True, eq=False)
class _Question:
    node: str
    batch: Batch
    answer: asyncio.Future[PolicyOutput]


class PolicyServer:
    """The policy's actor. Nodes call what takes a ``node``, the evaluation calls the rest.

    Args:
        chunk: Actions per decision of the built-in policies.
        max_wait_s: How long a node's rows wait for those of others.
        folder: The evaluation's working directory.
    """

    def __init__(self, chunk: int, max_wait_s: float, folder: str) -> None:
        stand_in(folder)
        self._policies = Policies(chunk)
        self._max_wait_s = max_wait_s
        self._thread = ThreadPoolExecutor(1, "polyarm-policy")
        self._policy: Policy | None = None
        self._playing: Counter[str] = Counter()
        self._gone: set[str] = set()
        self._questions: list[_Question] = []
        self._asked = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def load(self, policy: Any, group: Group) -> dict[str, Any]:
        """Take a policy for the episodes of a group; returns its traits."""
        self._playing.clear()

        def suited() -> Policy:
            if (space := known_space(group)) is None:
                if isinstance(policy, str) and not fits_any_space(policy):
                    raise InvalidCall(
                        f"{policy} is made for an action space, which {group.specs[0].name} says"
                        f" only when it is built: use --ray-policy replicate"
                    )
                return self._policies.get(policy, None)  # type: ignore[arg-type]
            return self._policies.suited(policy, space, group)

        self._policy = acting = await self._in_thread(suited)
        traits = {name: getattr(acting, name) for name in _TRAITS if hasattr(acting, name)}
        return {**traits, "device": str(getattr(acting, "device", ""))}

    async def forget(self, node: str) -> None:
        """A node is gone: nothing that it still asks is answered."""
        self._gone.add(node)
        self._playing.pop(node, None)
        self._asked.set()

    async def begin(self, node: str, keys: Sequence[EpisodeKey]) -> None:
        """Episodes begin on a node."""
        self._require(node)
        self._playing[node] += len(keys)
        await self._in_thread(lambda: self._acting().begin(keys))

    async def end(self, node: str, keys: Sequence[EpisodeKey]) -> None:
        """Episodes of a node are over."""
        self._require(node)
        self._playing[node] -= len(keys)
        self._asked.set()
        if hasattr(self._policy, "end"):
            await self._in_thread(lambda: self._acting().end(keys))  # type: ignore[attr-defined]

    async def act(self, node: str, batch: Batch) -> PolicyOutput:
        """Decide about a node's rows, together with those of others."""
        self._require(node)
        question = _Question(node, batch, asyncio.get_running_loop().create_future())
        self._questions.append(question)
        self._asked.set()
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        return await question.answer

    def _acting(self) -> Policy:
        assert self._policy is not None
        return self._policy

    def _require(self, node: str) -> None:
        if node in self._gone:
            raise InvalidCall(f"node {node} was given up; its episodes are played elsewhere")

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._asked.wait()
            deadline = loop.time() + self._max_wait_s
            while not self._complete() and (left := deadline - loop.time()) > 0:
                self._asked.clear()
                try:
                    await asyncio.wait_for(self._asked.wait(), left)
                except TimeoutError:
                    break
            self._asked.clear()
            asked, self._questions = self._questions, []
            try:
                await self._decide([each for each in asked if each.node not in self._gone])
            except Exception as error:  # noqa: BLE001  told to every node; else they would wait on
                _refuse(asked, error)

    def _complete(self) -> bool:
        """Whether nobody else will ask: all nodes that play wait for an answer."""
        playing = {node for node, episodes in self._playing.items() if episodes > 0}
        return playing <= {each.node for each in self._questions}

    async def _decide(self, asked: Sequence[_Question]) -> None:
        alike: dict[Any, list[_Question]] = {}
        for each in asked:  # what is shaped otherwise cannot share an array
            alike.setdefault(_shapes(each.batch.obs), []).append(each)
        for group in alike.values():
            try:
                outputs = await self._in_thread(partial(self._answer, group))
            except Exception as error:  # noqa: BLE001  told to every node of the batch
                _refuse(group, error)
                continue
            for each, output in zip(group, outputs, strict=True):
                if not each.answer.done():
                    each.answer.set_result(output)

    def _answer(self, asked: Sequence[_Question]) -> list[PolicyOutput]:
        batches = [each.batch for each in asked]
        whole = batches[0] if len(batches) == 1 else joined(batches)
        try:
            output = self._acting().act(whole)
        except PolicyError as error:
            if len(batches) > 1:
                error.row = None  # it is a row of the whole
            raise
        if not isinstance(output, PolicyOutput):
            output = PolicyOutput(output)
        actions = _rows(output.actions, len(whole), "actions")
        extras = {name: _rows(each, len(whole), name) for name, each in output.extras.items()}
        outputs, start = [], 0
        for batch in batches:
            part = slice(start, start + len(batch))
            states = [generator.bit_generator.state for generator in batch.generators]
            own = {name: values[part] for name, values in extras.items()}
            outputs.append(PolicyOutput(actions[part], {**own, _GENERATORS: states}))
            start += len(batch)
        return outputs


class CentralPolicy:
    """What acts on a node: asks the actor that has the policy.

    Args:
        server: That actor.
        node: Whose questions these are.
        traits: The policy's.
        timeout_s: How long an answer may take; None for ever.
    """

    def __init__(
        self, server: Any, node: str, traits: Mapping[str, Any], timeout_s: float | None
    ) -> None:
        self._server = server
        self._node = node
        self._timeout_s = timeout_s
        for name, value in traits.items():
            setattr(self, name, value)

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes begin."""
        self._ask(self._server.begin.remote(self._node, list(episodes)))

    def end(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes are over."""
        self._ask(self._server.end.remote(self._node, list(episodes)))

    def act(self, batch: Batch) -> PolicyOutput:
        """What the policy decides; generators go on as if it had been here."""
        output: PolicyOutput = self._ask(self._server.act.remote(self._node, batch))
        extras = dict(output.extras)
        for generator, state in zip(batch.generators, extras.pop(_GENERATORS), strict=True):
            generator.bit_generator.state = state
        return PolicyOutput(output.actions, extras)

    def _ask(self, answer: Any) -> Any:
        ray = ray_library()
        try:
            return ray.get(answer, timeout=self._timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise PolicyError(
                f"the central policy has not answered for {self._timeout_s:g} s"
            ) from None
        except ray.exceptions.RayTaskError as error:
            raise why(error) from None
        except ray.exceptions.RayError as error:
            raise PolicyError(f"the central policy was lost: {error}") from error


def _refuse(asked: Sequence[_Question], error: Exception) -> None:
    for each in asked:
        if not each.answer.done():
            each.answer.set_exception(error)


def joined(batches: Sequence[Batch]) -> Batch:
    """The rows of several batches as one."""
    return Batch(
        obs=concatenated([batch.obs for batch in batches]),
        keys=tuple(key for batch in batches for key in batch.keys),
        instructions=tuple(each for batch in batches for each in batch.instructions),
        steps=np.concatenate([batch.steps for batch in batches]),
        generators=tuple(each for batch in batches for each in batch.generators),
    )


def _rows(values: Any, count: int, what: str) -> Any:
    array = np.asarray(to_host(values))
    if array.ndim == 0 or len(array) != count:
        raise PolicyError(
            f"the policy's {what} have shape {array.shape}, expected one entry per row:"
            f" ({count}, …)"
        )
    return array


def _shapes(obs: Any) -> Any:
    if isinstance(obs, Mapping):
        return tuple((name, _shapes(obs[name])) for name in sorted(obs))
    if isinstance(obs, tuple):
        return tuple(map(_shapes, obs))
    return obs.shape[1:], obs.dtype.str

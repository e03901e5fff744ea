"""A LeRobot policy in our runner: batched over tasks, with everything it remembers per episode.

LeRobot's ``select_action`` keeps one queue of actions, one history of observations and one ensemble
for a whole batch, so all its rows must begin and refill together. Here a row is an episode: what is
kept belongs to its `EpisodeKey`, and ``predict_action_chunk`` is asked about the rows that need it.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import Batch, EnvSpec, EpisodeKey, map_leaves, to_host
from polyarm.errors import PolicyError
from polyarm.policies.lerobot_features import check_cameras, check_libero, explained, other_sizes
from polyarm.policies.lerobot_noise import NoiseOfEpisodes
from polyarm.policies.lerobot_observations import OWN_OBSERVATIONS, to_lerobot
from polyarm.policies.lerobot_processors import (
    env_processors,
    pipeline_digest,
    rename_map,
    require_lerobot,
)
from polyarm.policies.torch import weights_digest

log = logging.getLogger("polyarm")

Array = NDArray[Any]

_ACTION = "action"
_IMAGES = "observation.images"

_OWN_MEMORY = {
    "tdmpc": "it plans on from its previous plan, which it keeps for a whole batch",
    "lingbot_va": "it keeps the video of a single episode",
    "sac": "it gives single actions, not chunks",
    "gaussian_actor": "it gives single actions, not chunks",
}
"""Types of policies whose ``predict_action_chunk`` cannot be asked about episodes one by one."""


@dataclass(slots=True)
class _Memory:
    """What is kept for one episode."""

    seen: dict[str, list[Any]] = field(default_factory=dict)
    planned: deque[Array] = field(default_factory=deque)
    ensembler: Any = None


class LeRobotPolicy:
    """Drives envs by a ``PreTrainedPolicy``, or one with PEFT adapters.

    Observations take LeRobot's own way: ``preprocess_observation``, the env's processor, the
    policy's processor, ``predict_action_chunk``, and back through both processors. An episode's
    actions are those of ``select_action`` in a batch of one. Noise comes from each episode's
    generator.

    Args:
        policy: The policy; it is put into eval mode and stays on its device.
        preprocessor: LeRobot's pipeline before the policy; None if there is none.
        postprocessor: The same behind it; it gets ``(B, A)``, step by step, as in LeRobot.
        env_preprocessor: By default LeRobot's for the suite.
        env_postprocessor: The same for actions.

    Attributes:
        device: ``torch.device`` of the policy.
        execute: Actions executed before it is asked again: its ``n_action_steps``, or 1 if it has
            to see every observation (a history, or temporal ensembling).
        needs_frames: Whether it looks at frames.
        row_independent: False: PyTorch's sums may differ in the last bits between batch sizes.

    Raises:
        MissingExtra: LeRobot is not installed.
        PolicyError: It is none of LeRobot's, or of a kind that cannot be asked about episodes one
            by one.
    """

    row_independent = False

    def __init__(
        self,
        policy: Any,
        *,
        preprocessor: Any = None,
        postprocessor: Any = None,
        env_preprocessor: Any = None,
        env_postprocessor: Any = None,
    ) -> None:
        require_lerobot()
        from lerobot.policies.pretrained import PreTrainedPolicy

        # PEFT puts its layers inside of the policy; attributes set on its wrapper would stay there.
        inner = policy.get_base_model() if hasattr(policy, "get_base_model") else policy
        if not isinstance(inner, PreTrainedPolicy):
            raise PolicyError(f"{type(inner).__qualname__} is no PreTrainedPolicy of LeRobot's")
        self._policy = inner.eval()
        self.config = inner.config
        if (reason := _OWN_MEMORY.get(self.config.type)) is not None:
            raise PolicyError(
                f"policies of the type {self.config.type!r} cannot run here: {reason}"
            )
        self.device = next(inner.parameters()).device
        self._of_episodes = NoiseOfEpisodes(self.device)
        self._preprocessor = self._to_device if preprocessor is None else preprocessor
        self._postprocessor = postprocessor
        self._env_given = (env_preprocessor, env_postprocessor)
        self._env_known: dict[str, tuple[Any, Any]] = {}
        self._pipelines = (preprocessor, postprocessor, env_preprocessor, env_postprocessor)
        self._episodes: dict[EpisodeKey, _Memory] = {}
        self._warned: set[str] = set()
        self._ensembler = getattr(inner, "temporal_ensembler", None)
        queues = getattr(inner, "_queues", None) or {}
        self._lengths = {key: queues[key].maxlen for key in queues if key != _ACTION}
        self._remembers = max(self._lengths.values(), default=1) > 1
        self._steps = _action_steps(inner)
        every_step = self._remembers or self._ensembler is not None
        self.execute = 1 if every_step else self._steps
        self.needs_frames = bool(self.config.image_features)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Class and weights as they are now, the processors, and how many actions are executed."""
        return {
            "policy": "lerobot",
            "type": self.config.type,
            "class": type(self._policy).__qualname__,
            "lerobot": version("lerobot"),
            "weights": weights_digest(self._policy.state_dict()),
            "processors": [pipeline_digest(pipeline) for pipeline in self._pipelines],
            "n_action_steps": self._steps,
            "n_obs_steps": max(self._lengths.values(), default=1),
            "ensemble": getattr(self.config, "temporal_ensemble_coeff", None),
            "noise": "episode",
        }

    def check_spec(self, spec: EnvSpec) -> None:
        """Refuse an env that shows other things than the policy wants.

        Raises:
            PolicyError: Frames are turned the wrong way, or come from other cameras.
        """
        if self._env_given[0] is not None or spec.suite in OWN_OBSERVATIONS:
            return  # nobody knows before they are seen
        if spec.suite == "libero":
            check_libero(spec, self.config)
        check_cameras(spec, self.config, rename_map(self._preprocessor))
        warning = other_sizes(spec, self.config)
        if warning and warning not in self._warned:
            self._warned.add(warning)
            log.warning(warning)

    # Episodes.

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes begin, maybe again; what is kept for them is forgotten."""
        self.end(episodes)

    def end(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes are over; what is kept for them is dropped."""
        for key in episodes:
            self._episodes.pop(key, None)

    def act(self, batch: Batch) -> Array:
        """Actions for every row, ``(B, K, A)``.

        Raises:
            PolicyError: The policy wants what the env does not show, or returned no chunk.
        """
        import torch

        if self._policy.training:  # it is used while it is being trained
            self._policy.eval()
        amp = getattr(self.config, "use_amp", False)
        with torch.inference_mode(), torch.autocast(self.device.type) if amp else nullcontext():
            inputs = self._inputs(batch)
            if self._ensembler is not None:
                return self._averaged(batch, inputs)
            if self._remembers:
                return self._recalled(batch, inputs)
            now = {name: [inputs[name]] for name in self._lengths if name in inputs}
            chunk = self._predicted(inputs, batch, now)
            return self._finished(chunk[:, : self._steps], batch.keys[0].suite)

    def _averaged(self, batch: Batch, inputs: dict[str, Any]) -> Array:
        """One action each, averaged with what was predicted for this step before."""
        import torch

        chunk = self._predicted(inputs, batch, {})
        actions = []
        for row, key in enumerate(batch.keys):
            memory = self._episodes.setdefault(key, _Memory())
            if memory.ensembler is None:
                memory.ensembler = copy.deepcopy(self._ensembler)
                memory.ensembler.reset()
            actions.append(memory.ensembler.update(chunk[row : row + 1]))
        return self._finished(torch.cat(actions)[:, None], batch.keys[0].suite)

    def _recalled(self, batch: Batch, inputs: dict[str, Any]) -> Array:
        """One action each: the next that is planned, or the first of a new plan."""
        histories = [self._history(key, row, inputs) for row, key in enumerate(batch.keys)]
        memories = [self._episodes.get(key, _Memory()) for key in batch.keys]
        asked = [row for row, memory in enumerate(memories) if not memory.planned]
        plans: Sequence[Array] = ()
        if asked:
            queues = {
                key: [
                    _stacked([histories[row][key][step] for row in asked]) for step in range(size)
                ]
                for key, size in self._lengths.items()
                if key in inputs
            }
            chunk = self._predicted(_rows(inputs, asked, len(batch)), _part(batch, asked), queues)
            plans = list(self._finished(chunk[:, : self._steps], batch.keys[0].suite))
        # Nothing is kept before this line: who runs out of memory is asked about these steps again.
        for row, plan in zip(asked, plans, strict=True):
            memories[row].planned.extend(plan)
        for key, memory, history in zip(batch.keys, memories, histories, strict=True):
            memory.seen = history
            self._episodes[key] = memory
        return np.stack([memory.planned.popleft() for memory in memories])[:, np.newaxis]

    def _history(
        self, key: EpisodeKey, row: int, inputs: Mapping[str, Any]
    ) -> dict[str, list[Any]]:
        """What an episode has seen up to now; its first observation counts as often as needed."""
        memory = self._episodes.get(key)
        history = {}
        for name, length in self._lengths.items():
            if name in inputs:
                now = inputs[name][row].clone()  # inputs may be views of the env's memory
                before = memory.seen[name] if memory is not None else [now] * length
                history[name] = [*before[1:], now]
        return history

    # LeRobot's way from observations to actions.

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        from lerobot.envs.utils import preprocess_observation

        suites = {key.suite for key in batch.keys}
        if len(suites) > 1:
            raise PolicyError(f"one batch holds rows of several suites: {sorted(suites)}")
        suite = batch.keys[0].suite
        obs = batch.obs if isinstance(batch.obs, Mapping) else {"state": batch.obs}
        observed = preprocess_observation(to_lerobot(map_leaves(_writable, obs), suite))
        observed["task"] = list(batch.instructions)
        observed = self._around(suite)[0](observed)
        with explained(self.config, observed, rename_map(self._preprocessor)):
            inputs = dict(self._preprocessor(observed))
            inputs.pop(_ACTION, None)  # of training; nobody has acted yet
            if _IMAGES in self._lengths:
                frames = [inputs[key] for key in self.config.image_features]
                inputs[_IMAGES] = _stacked(frames, dim=-4)
        return inputs

    def _predicted(
        self, inputs: dict[str, Any], batch: Batch, queues: Mapping[str, Sequence[Any]]
    ) -> Any:
        """A chunk ``(B, K, A)``; ``queues`` are put where the policy looks for its observations."""
        given = self._noise(batch)

        def asked() -> Any:
            for name, observations in queues.items():
                self._policy._queues[name].extend(observations)
            try:
                return self._policy.predict_action_chunk(dict(inputs), **given)
            finally:
                if queues:
                    self._policy.reset()

        with explained(self.config, inputs):
            chunk = self._of_episodes.ask(asked, batch.generators)
        if chunk.ndim != 3 or len(chunk) != len(batch):
            raise PolicyError(
                f"{type(self._policy).__qualname__}.predict_action_chunk got {len(batch)} rows and"
                f" returned shape {tuple(chunk.shape)}; expected ({len(batch)}, steps, actions)"
            )
        return chunk

    def _noise(self, batch: Batch) -> dict[str, Any]:
        """Noise as an argument, for models whose draws nobody can answer: they are compiled."""
        import torch

        width = getattr(self.config, "max_action_dim", None)
        if not getattr(self.config, "compile_model", False) or width is None:
            return {}
        noise = batch.noise(self.config.chunk_size, width)
        return {"noise": torch.from_numpy(noise).to(self.device)}

    def _finished(self, chunk: Any, suite: str) -> Array:
        """The chunk behind all processors; they get single steps, as in LeRobot's own loop."""
        env_postprocessor = self._around(suite)[1]
        steps = []
        for step in range(chunk.shape[1]):
            action = chunk[:, step]
            if self._postprocessor is not None:
                action = self._postprocessor(action)
            steps.append(to_host(env_postprocessor({_ACTION: action})[_ACTION]))
        return np.stack(steps, axis=1)

    def _around(self, suite: str) -> tuple[Any, Any]:
        """The env's processors."""
        if suite not in self._env_known:
            own = env_processors(suite, self.config)
            given = zip(self._env_given, own, strict=True)
            before, after = (mine if mine is not None else theirs for mine, theirs in given)
            self._env_known[suite] = (before, after)
        return self._env_known[suite]

    def _to_device(self, observed: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: value.to(self.device) if hasattr(value, "to") else value
            for key, value in observed.items()
        }


def _action_steps(policy: Any) -> int | None:
    """How many actions of a chunk the policy itself would execute; None for all."""
    queue = getattr(policy, "_action_queue", None)
    if queue is None:
        queue = (getattr(policy, "_queues", None) or {}).get(_ACTION)
    own = getattr(policy.config, "n_action_steps", None)
    return own if queue is None or queue.maxlen is None else queue.maxlen


def _writable(leaf: Array) -> Array:
    """The array, or a copy: PyTorch warns of arrays that must not be written to."""
    return leaf if leaf.flags.writeable else leaf.copy()


def _stacked(tensors: Sequence[Any], dim: int = 0) -> Any:
    import torch

    return torch.stack(list(tensors), dim=dim)


def _part(batch: Batch, rows: Sequence[int]) -> Batch:
    """The named rows, without their observations."""
    return Batch(
        None,
        tuple(batch.keys[row] for row in rows),
        tuple(batch.instructions[row] for row in rows),
        batch.steps[list(rows)],
        tuple(batch.generators[row] for row in rows),
    )


def _rows(inputs: Mapping[str, Any], rows: Sequence[int], count: int) -> dict[str, Any]:
    """The named rows of what has one entry per row; the rest as it is."""

    def chosen(value: Any) -> Any:
        if isinstance(value, list) and len(value) == count:
            return [value[row] for row in rows]
        if getattr(value, "ndim", 0) and len(value) == count:
            return value[list(rows)]
        return value

    return {name: chosen(value) for name, value in inputs.items()}

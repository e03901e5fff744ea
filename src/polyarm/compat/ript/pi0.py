"""The PI0 flavour of RIPT-VLA's runner: it holds its policy, and normalises for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from polyarm.compat.ript.policies import PI0Policy, find_pi0
from polyarm.compat.ript.runner import LiberoRunner
from polyarm.contracts import Policy
from polyarm.errors import InvalidCall
from polyarm.policies.statistics import Normalization, load_openpi


class PI0LiberoRunner(LiberoRunner):
    """Plays a policy that it is made with, by openpi's rules unless ``protocol`` says otherwise.

    Its observations also carry LIBERO's own names (``agentview_image``, ``robot0_eef_pos`` …).

    Args:
        policy: What acts where a call names none: one of polyarm's policies or its name, a function
            of a batch, an ``nn.Module``, or a PI0 model with ``select_action(observation, noise)``.
        benchmark_name: As for `LiberoRunner`, like the next five.
        rollouts_per_env: Episodes of each task.
        num_parallel_envs: Episodes that run at once, of all tasks together.
        max_episode_length: Policy steps of an episode; by default the protocol's.
        task_names_to_use: Tasks that `run` plays; all of them if there are none.
        rank: Of this process.
        norm_stats: openpi's ``norm_stats.json``, or the checkpoint that has it; a PI0 model needs
            it, other policies normalise by themselves.
        **options: Further arguments of `LiberoRunner`.
    """

    _raw_observations = True

    def __init__(  # noqa: PLR0913  the original's own parameters
        self,
        policy: Any,
        benchmark_name: str,
        rollouts_per_env: int,
        num_parallel_envs: int,
        max_episode_length: int | None = None,
        task_names_to_use: Sequence[str] | None = (),
        rank: int = 0,
        *,
        norm_stats: str | Path | None = None,
        **options: Any,
    ) -> None:
        own = {"robot_state": True, **(options.pop("suite_options", None) or {})}
        super().__init__(
            benchmark_name,
            rollouts_per_env,
            num_parallel_envs,
            max_episode_length,
            task_names_to_use,
            rank=rank,
            suite_options=own,
            **{"protocol": "openpi", **options},
        )
        self.policy = policy
        self._norm_stats = norm_stats

    @cached_property
    def _stats(self) -> Normalization:
        if self._norm_stats is None:
            raise InvalidCall(
                "a PI0 model speaks normalised numbers: give norm_stats, its checkpoint or"
                " norm_stats.json (in a configuration: norm_stats_path or policy_path)"
            )
        return load_openpi(self._norm_stats, model="pi0")

    def acting(self, policy: Any = None) -> Policy:
        """As for `LiberoRunner`; without a policy, the runner's own."""
        chosen = self.policy if policy is None else policy
        model = find_pi0(chosen)
        return super().acting(chosen if model is None else PI0Policy(model, self._stats))

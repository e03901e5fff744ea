"""vla-eval's own harness, playing LIBERO episodes with a model server.

A script for a process of its own, because LIBERO draws into whichever GL context is current::

    python vla_eval_reference.py ADDRESS STEPS

Everything that matters is vla-eval's: orchestrator, connection, runner and benchmark. It is told
where LIBERO's assets are, and plays one task: an episode under relative control, and one under
absolute control, which is what the server asks for.
"""

from __future__ import annotations

import sys

import anyio
from vla_eval.benchmarks.libero.benchmark import LIBEROBenchmark
from vla_eval.orchestrator import Orchestrator

SUITE, TASK = "libero_goal", 3


class OneTask(LIBEROBenchmark):
    """LIBERO's benchmark with one task.

    Args:
        task: Its place in the suite.
        **params: Of the benchmark.
    """

    def __init__(self, task: int, **params: object) -> None:
        super().__init__(**params)
        self._task = task

    def get_tasks(self) -> list[dict[str, object]]:
        return [super().get_tasks()[self._task]]


def main() -> None:
    address, steps = sys.argv[1:]
    _find_assets()
    entry = {
        "benchmark": f"{__name__}:OneTask",
        "episodes_per_task": 1,
        "max_steps": int(steps),
    }
    params = {"suite": SUITE, "task": TASK, "seed": 7}
    config = {
        "server": {"url": address, "timeout": 120},
        "render": "cpu",
        "benchmarks": [
            {**entry, "params": {**params, "absolute_action": False}},
            {**entry, "params": params},
        ],
    }
    results = anyio.run(Orchestrator(config, no_save=True).run)
    failures = [
        episode.get("failure_detail")
        for result in results
        for played in result["tasks"]
        for episode in played["episodes"]
        if episode.get("failure_reason")
    ]
    if failures:
        raise SystemExit("\n".join(map(str, failures)))


def _find_assets() -> None:
    from polyarm.suites.libero.assets import checked_folder, prepare_libero_config

    prepare_libero_config()
    import libero.libero

    libero.libero._assets_path_cache = str(checked_folder())


if __name__ == "__main__":
    main()

"""LIBERO's benchmarks as RIPT-VLA's scripts ask for them, without importing LIBERO."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyarm.errors import UnknownName
from polyarm.suites.libero import catalogue, init_states
from polyarm.suites.libero.assets import package_folder


class BenchmarkTask(NamedTuple):
    """One task, with the names that LIBERO's own tasks have."""

    name: str
    language: str
    problem: str
    problem_folder: str
    bddl_file: str
    init_states_file: str


class Benchmark:
    """One of LIBERO's suites.

    Args:
        name: ``"libero_spatial"``, ``"LIBERO_GOAL"`` …, in any case of letters.

    Attributes:
        name: In small letters.
        n_tasks: How many tasks there are.

    Raises:
        UnknownName: There is no such suite.
    """

    def __init__(self, name: str) -> None:
        self.name = str(name).lower()
        if self.name not in catalogue.HORIZONS:
            raise UnknownName("benchmark", str(name), catalogue.HORIZONS)
        self._tasks = [task for task in catalogue.tasks().values() if task.suite == self.name]
        self._states: dict[int, NDArray[np.float64]] = {}
        self.n_tasks = len(self._tasks)

    def get_num_tasks(self) -> int:
        """How many tasks there are."""
        return self.n_tasks

    def get_task_names(self) -> list[str]:
        """LIBERO's names of the tasks, in its order."""
        return [task.stem for task in self._tasks]

    def get_task(self, i: int) -> BenchmarkTask:
        """The task with this number."""
        task = self._tasks[i]
        return BenchmarkTask(
            name=task.stem,
            language=task.instruction,
            problem="Libero",
            problem_folder=task.suite,
            bddl_file=f"{task.stem}.bddl",
            init_states_file=f"{task.stem}.pruned_init",
        )

    def get_task_init_states(self, i: int) -> NDArray[np.float64]:
        """A task's initial states, float64 (n, 1 + nq + nv): time, positions, velocities.

        Raises:
            MissingExtra: LIBERO is not installed.
            StorageError: Its files are damaged.
        """
        if i not in self._states:
            file = package_folder() / "init_files" / self._tasks[i].init_states_file
            self._states[i] = init_states.read(file)
        return self._states[i].copy()

    def find(self, name: str | int) -> int:
        """The number of a task, by its name or number.

        Raises:
            UnknownName: There is none.
        """
        names = self.get_task_names()
        if name in names:
            return names.index(str(name))
        if str(name).isdecimal() and int(name) < self.n_tasks:
            return int(name)
        raise UnknownName(f"task of {self.name}", str(name), names)

    def task_name(self, i: int) -> str:
        """The task's name in polyarm's suite, such as ``"libero_goal/3"``."""
        return self._tasks[i].name

"""LIBERO's own env of one task, without GL, and the exact start of any episode in it.

An episode starts as in a LIBERO env that has seen a given number of resets since it was seeded,
although none of those is run here: fixtures are placed by NumPy's global generator, which the
samplers of the earlier resets have moved on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from polyarm.errors import StorageError
from polyarm.suites.libero import assets
from polyarm.suites.libero.importing import import_libero
from polyarm.suites.libero.sampling import Sampler, SamplingClock
from polyarm.suites.libero.stepping import OscStepper

# All that LIBERO ever changes in a model; a test compares every field.
_EDITED_FIELDS = ("body_pos", "body_quat", "site_rgba")

_FIRST_LOADS = 2
"""How often the model has been loaded after a LIBERO env's first reset: it is built with one."""


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """Where an episode begins.

    Attributes:
        seed: Of NumPy's global generator.
        resets: Hard resets since it was seeded and before this one.
        built_resets: Hard resets since the env was built and before this one; LIBERO keeps adding
            samplers, so that these too move the generator.
    """

    seed: int
    resets: int
    built_resets: int


class Simulator:
    """One task.

    Args:
        bddl_file: The task's definition.
        soft_reset: Start episodes without building the model anew.
        lean_step: Leave out what robosuite computes more than once.

    Attributes:
        problem: LIBERO's env.
        sampler: The last observation, as LIBERO would have sampled it.
    """

    def __init__(self, bddl_file: Path, *, soft_reset: bool, lean_step: bool) -> None:
        self._lean_step = lean_step
        self.problem = _build(bddl_file, hard_reset=not soft_reset)
        self._property_samplers = list(self.problem.object_property_initializers)
        self._clock = SamplingClock(self.problem.model_timestep)
        self._generators = _Generators(self._skip_reset)
        self._take_references()

    @property
    def model(self) -> Any:
        """The `mujoco.MjModel`; a new one after each hard reset."""
        return self.problem.sim.model._model

    @property
    def controller(self) -> Any:
        """The robot's controller; a new one after each reset."""
        return self.problem.robots[0].controller

    def reset(self, start: EpisodeStart) -> None:
        """Start an episode with things where LIBERO's samplers put them."""
        problem = self.problem
        with self._generators.at(start):
            self._restore(start.built_resets)
            problem.reset()
        self._take_references()
        self._clock.reset()
        self._clock.tick(forced=True)
        self.sampler.sample()

    def set_state(self, state: NDArray[np.float64]) -> None:
        """Put things where an initial state says, float64 (1 + nq + nv); fixtures stay.

        As LIBERO's ``set_init_state``, without its renders.
        """
        problem = self.problem
        expected = 1 + self.model.nq + self.model.nv
        if state.shape != (expected,):
            raise StorageError(
                f"an initial state of {problem.bddl_file_name} has {state.size} numbers, but the "
                f"model needs {expected}: the files of LIBERO do not belong together. "
                "polyarm setup libero --force installs them anew."
            )
        problem.sim.set_state_from_flattened(state)
        problem.sim.forward()
        problem._check_success()
        problem._post_process()
        self._clock.tick(forced=True)
        self.sampler.sample()

    def use_poses(self, *, absolute: bool) -> None:
        """Understand the following actions as poses instead of displacements."""
        self.controller.use_delta = not absolute

    def step(self, action: NDArray[np.float64]) -> bool:
        """Move for 50 ms; whether the task is solved."""
        if self._lean_step:
            self._stepper.step(action, self._after_substep)
        else:
            self._own_step(action)
        succeeds: bool = self.problem._check_success()
        self.problem._post_process()
        return succeeds

    def state(self) -> NDArray[np.float64]:
        """Time, positions and velocities, float64 (1 + nq + nv)."""
        state: NDArray[np.float64] = self.problem.sim.get_state().flatten()
        return state

    def _own_step(self, action: NDArray[np.float64]) -> None:
        """As robosuite steps, with its own controller."""
        problem = self.problem
        for substep in range(int(problem.control_timestep / problem.model_timestep)):
            problem.sim.forward()
            problem._pre_action(action, substep == 0)
            problem.sim.step()
            self._after_substep()

    def _after_substep(self) -> None:
        if self._clock.tick():
            self.sampler.sample()

    def _restore(self, built_resets: int) -> None:
        """Undo what earlier episodes left behind, as loading the model anew would.

        With hard resets, LIBERO loads the model itself and adds its samplers once more.
        """
        problem = self.problem
        loads = built_resets + _FIRST_LOADS - problem.hard_reset
        problem.object_property_initializers = self._property_samplers * loads
        if problem.hard_reset:
            return
        for name, value in problem.as_loaded.items():
            getattr(self.model, name)[:] = value
        gripper = problem.robots[0].gripper
        gripper.current_action = np.zeros(gripper.dof)
        for item in (*problem.objects, *problem.fixtures):
            shown = item.object_properties["vis_site_names"]
            shown.update({key: (site, False) for key, (site, _) in shown.items()})

    def _skip_reset(self, built_resets: int) -> None:
        """Draw the random numbers of one reset."""
        hard_reset, self.problem.hard_reset = self.problem.hard_reset, False
        try:
            self._restore(built_resets)
            self.problem.sim.reset()
            self.problem._reset_internal()
        finally:
            self.problem.hard_reset = hard_reset

    def _take_references(self) -> None:
        """Look up what a reset replaces: the controller, and with a hard one the model."""
        problem = self.problem
        if problem.hard_reset or not hasattr(self, "sampler"):
            self.sampler = Sampler(self.model, problem.sim.data._data, problem.robots[0])
        self._stepper = OscStepper(problem)


class _Generators:
    """States of NumPy's global generator after n resets; they are remembered.

    Args:
        skip_reset: Draws the numbers of one reset, given the resets since the build.
    """

    def __init__(self, skip_reset: Any) -> None:
        self._skip_reset = skip_reset
        self._states: dict[tuple[int, int], list[Any]] = {}

    @contextmanager
    def at(self, start: EpisodeStart) -> Iterator[None]:
        """NumPy's global generator as it is before the reset of an episode, for a while."""
        users = np.random.get_state()
        try:
            np.random.set_state(self._before(start))
            yield
        finally:
            np.random.set_state(users)

    def _before(self, start: EpisodeStart) -> Any:
        surplus = start.built_resets - start.resets
        states = self._states.setdefault((start.seed, surplus), [])
        if not states:
            np.random.seed(start.seed)
            states.append(np.random.get_state())
        np.random.set_state(states[-1])
        while len(states) <= start.resets:
            self._skip_reset(surplus + len(states) - 1)
            states.append(np.random.get_state())
        return states[start.resets]


def _build(bddl_file: Path, *, hard_reset: bool) -> Any:
    """LIBERO's env as `OffScreenRenderEnv` makes it, but without anything that renders."""
    envs = import_libero()
    from libero.libero.envs import bddl_utils
    from robosuite import load_controller_config

    name = bddl_utils.get_problem_info(str(bddl_file))["problem_name"]
    users = np.random.get_state()
    try:
        return _adapted(envs.TASK_MAPPING[name])(
            str(bddl_file),
            robots=["Panda"],
            controller_configs=load_controller_config(default_controller="OSC_POSE"),
            initialization_noise=None,
            use_camera_obs=False,
            has_offscreen_renderer=False,
            hard_reset=hard_reset,
            ignore_done=True,
        )
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise assets.unusable(assets.assets_folder(), error) from error
    finally:
        np.random.set_state(users)


def _adapted(problem: type[Any]) -> type[Any]:
    """LIBERO's class, so that resets without GL, hard or soft, are those of LIBERO with GL.

    It gets an attribute ``as_loaded``: the model's fields before anything was placed.
    """

    def initialize_sim(self: Any, xml_string: str | None = None) -> None:
        problem._initialize_sim(self, xml_string)
        model = self.sim.model._model
        self.as_loaded = {name: getattr(model, name).copy() for name in _EDITED_FIELDS}

    def reset_internal(self: Any) -> None:
        # Forward passes leave their mark on the solver's next start. A hard reset makes one when
        # the model is loaded, and one when its render context is made.
        if not self.hard_reset:
            self.sim.forward()
        self.sim.forward()
        problem._reset_internal(self)

    # LIBERO compares the class's name with its definition's.
    methods = {"_initialize_sim": initialize_sim, "_reset_internal": reset_internal}
    return type(problem.__name__, (problem,), methods)

"""PyRep: launching, stepping and ending the simulator."""

import os
from pathlib import Path

from pyrep.backend import sim
from pyrep.const import ObjectType, Verbosity
from pyrep.errors import PyRepError
from pyrep.objects.object import Object


class PyRep:
    def __init__(self) -> None:
        self.running = False
        self._launched = False
        if "COPPELIASIM_ROOT" not in os.environ:
            raise PyRepError("COPPELIASIM_ROOT is not set; the double's README says what to set.")
        self._vrep_root = os.environ["COPPELIASIM_ROOT"]
        if not Path(self._vrep_root).exists():
            raise PyRepError(f"COPPELIASIM_ROOT names no folder: {self._vrep_root}")

    def launch(
        self,
        scene_file: str = "",
        headless: bool = False,
        responsive_ui: bool = False,
        blocking: bool = False,
        verbosity: Verbosity = Verbosity.NONE,
    ) -> None:
        if scene_file and not Path(scene_file).is_file():
            raise PyRepError(f"Scene file does not exist: {scene_file}")
        before = Path.cwd()
        os.chdir(self._vrep_root)  # the whole process moves, as its extensions are found there
        sim.launch(Path(self._vrep_root).absolute())
        self._launched = True
        self.step()
        os.chdir(before)

    def shutdown(self) -> None:
        self._check_launched()
        self.running = False
        sim.shutdown()
        self._launched = False

    def start(self) -> None:
        self._check_launched()
        self.running = True

    def stop(self) -> None:
        self._check_launched()
        self.running = False

    def step(self) -> None:
        sim.step(physics=self.running)

    def step_ui(self) -> None:
        sim.step(physics=False)

    def get_simulation_timestep(self) -> float:
        return sim.TIME_STEP_S

    def get_objects_in_tree(
        self, root_object: Object | None = None, object_type: ObjectType = ObjectType.ALL
    ) -> list[Object]:
        sim.enter()
        return [
            Object(body.name)
            for body in sim.simulator.bodies.values()
            if object_type in (ObjectType.ALL, body.kind)
        ]

    def _check_launched(self) -> None:
        if not self._launched:
            raise PyRepError("CoppeliaSim is not running: call launch first.")

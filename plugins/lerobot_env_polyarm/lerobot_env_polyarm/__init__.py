"""polyarm's envs as env types of LeRobot; importing this registers them.

LeRobot imports installed distributions whose names begin with ``lerobot_env_`` by itself. Versions
that don't (0.4) are told to: ``--env.discover_packages_path=lerobot_env_polyarm``.
"""

from lerobot_env_polyarm.configs import PolyarmLibero, PolyarmMetaworld
from lerobot_env_polyarm.hooks import hook_into_lerobot

__all__ = ["PolyarmLibero", "PolyarmMetaworld"]

hook_into_lerobot()

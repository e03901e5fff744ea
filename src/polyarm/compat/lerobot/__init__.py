"""LeRobot's functions of the same names, with our envs and our runner."""

from polyarm.compat.lerobot.evaluate import eval_policy_all
from polyarm.compat.lerobot.make import make_env
from polyarm.compat.lerobot.vector import LeRobotVectorEnv

__all__ = ["LeRobotVectorEnv", "eval_policy_all", "make_env"]

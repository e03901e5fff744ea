"""RLBench in CoppeliaSim: the suite, its env, its set-up."""

from polyarm.suites.rlbench.suite import RLBench

__all__ = ["RLBench"]

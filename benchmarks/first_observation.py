"""One measurement of startup.py, in a trainer of its own: who and how many envs are its arguments.

The clock starts when the trainer has imported NumPy, Gymnasium and the vector env it uses, but no
simulator, and stops at the first observation. AsyncVectorEnv imports the simulator into the
trainer by itself, for a dummy env; with fork its children inherit that import.
"""

from __future__ import annotations

import json
import os
import sys
import time

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv
from metaworld_envs import OPTIONS, TASK, PlainEnv
from processes import descendants, proportional_memory


def main() -> None:
    who, num_envs = sys.argv[1], int(sys.argv[2])
    if who == "polyarm":
        from polyarm.vector.make import make_vec
    began = time.perf_counter()
    envs: gymnasium.vector.VectorEnv
    if who == "polyarm":
        envs = make_vec(f"metaworld/{TASK}", num_envs=num_envs, **OPTIONS)
    else:
        envs = AsyncVectorEnv([PlainEnv(seed) for seed in range(num_envs)], context=who)
    obs, _ = envs.reset()
    seconds = time.perf_counter() - began
    state = obs["state"] if isinstance(obs, dict) else obs
    assert state.shape == (num_envs, 39)
    assert np.isfinite(state).all()
    pss = proportional_memory(descendants(os.getpid()))
    print(json.dumps({"seconds": seconds, "pss_nbytes": pss}))
    envs.close()


if __name__ == "__main__":
    main()

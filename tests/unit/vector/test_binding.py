"""Which envs write their observations in place, and what of those that only seem to."""

from __future__ import annotations

import numpy as np
import pytest

from polyarm.testing import BindingEnv, CountingEnv


@pytest.mark.parametrize(
    "bind",
    [lambda self, address: 1 / 0, lambda self: 1 / 0, "0.0.0.0", None],
    ids=["method", "method of nothing", "text", "none"],
)
def test_a_bind_of_another_kind_is_the_envs_own_affair(make, bind):
    class SocketEnv(CountingEnv):
        pass

    SocketEnv.bind = bind
    env = make(SocketEnv)
    obs, _ = env.reset(seed=3)
    assert obs["state"][:, 0].tolist() == [3, 4, 5, 6]
    assert env.step(np.zeros((4, 2), np.float32))[0]["state"][:, 1].tolist() == [1] * 4


def test_a_bind_that_fails_fails_in_the_reset(make_any):
    class FailingEnv(BindingEnv):
        def bind(self, buffers):
            raise OSError("no memory to write to")

    env = make_any(FailingEnv, num_envs=1)
    env.send_reset()
    error = env.recv().info["error"][0]
    assert (error.phase, error.error_class) == ("reset", "OSError")

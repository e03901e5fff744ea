"""What tells policies apart that say nothing of themselves."""

import math

import numpy as np
import pytest

from polyarm.policies.fingerprints import policy_fingerprint


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def test_equal_contents_are_equal_and_others_are_not():
    one = policy_fingerprint(Plain(gain=1.0, weights=np.arange(3)))
    assert one == policy_fingerprint(Plain(gain=1.0, weights=np.arange(3)))
    assert one != policy_fingerprint(Plain(gain=1.0, weights=np.arange(3) + 1))


def test_a_policy_may_hold_modules():
    torch = pytest.importorskip("torch")  # it has functions that a tensor has, too
    held = policy_fingerprint(Plain(torch=torch))
    assert held == policy_fingerprint(Plain(torch=torch))
    assert held != policy_fingerprint(Plain(torch=math))

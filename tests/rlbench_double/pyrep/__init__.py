"""A double of PyRep 4.1.0.3: the names and habits that RLBench and polyarm lean on."""

from pyrep.backend import loader

loader.find_library()

from pyrep.pyrep import PyRep  # noqa: E402  the library comes first, as in the real one

__version__ = "4.1.0.3"

testing = False

__all__ = ["PyRep"]

"""The enumerations of PyRep that RLBench passes around."""

from enum import Enum


class ObjectType(Enum):
    ALL = -2
    SHAPE = 0
    JOINT = 1
    DUMMY = 4
    PROXIMITY_SENSOR = 5
    VISION_SENSOR = 9
    FORCE_SENSOR = 12


class RenderMode(Enum):
    OPENGL = 0
    OPENGL_AUXILIARY = 1
    OPENGL_COLOR_CODED = 2
    POV_RAY = 3
    EXTERNAL = 5
    EXTERNAL_WINDOWED = 6
    OPENGL3 = 7
    OPENGL3_WINDOWED = 8


class ConfigurationPathAlgorithms(Enum):
    SBL = "SBL"
    RRTConnect = "RRTConnect"


class Verbosity(Enum):
    NONE = "none"
    ERRORS = "errors"
    WARNINGS = "warnings"
    LOAD_INFOS = "loadinfos"

"""The exceptions of PyRep."""


class PyRepError(Exception):
    pass


class WrongObjectTypeError(Exception):
    pass


class ObjectAlreadyRemovedError(Exception):
    pass


class ObjectIsNotModelError(Exception):
    pass


class ConfigurationError(Exception):
    pass


class ConfigurationPathError(Exception):
    pass


class GripperError(Exception):
    pass


class IKError(Exception):
    pass

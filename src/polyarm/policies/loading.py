"""Policies by the names they have on the command line.

- ``random``, ``zero``, ``expert``: built in.
- ``replay:<file or folder>``: recorded actions.
- ``<module>:<name>``: an object, class or function of your own.
- ``<module>:<name>@<path>``: the same, called with a checkpoint's path.
- ``<path>.pt``: a TorchScript module.
- ``openpi:ws://<host>:<port>[,ws://…][@<mapping>]``: a policy behind servers of openpi's kind.
- ``vla-eval:ws://<host>:<port>[,ws://…][@<param>=true,…]``: a model behind servers of vla-eval.
- ``lerobot:<path or repo id>[@<rename map>.json]``: a checkpoint of LeRobot's.
"""

from __future__ import annotations

import glob
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium

from polyarm.contracts import Policy
from polyarm.errors import MissingExtra, PolicyError, PolyarmError, UnknownName
from polyarm.policies.basic import (
    ExpertPolicy,
    FunctionPolicy,
    RandomPolicy,
    ReplayPolicy,
    ZeroPolicy,
)
from polyarm.policies.blame import raised
from polyarm.policies.fingerprints import files_digest, source_file_digest
from polyarm.policies.here import look_here
from polyarm.policies.lerobot import companions, lerobot_policy, split_name

_NAMES = (
    *("expert", "lerobot:<path or repo id>", "openpi:ws://<host>:<port>", "random"),
    *("replay:<path>", "vla-eval:ws://<host>:<port>", "zero"),
    *("<module>:<name>", "<path>.pt"),
)
_REPLAY = "replay:"
_LEROBOT = "lerobot:"
_OPENPI = "openpi:"
_VLA_EVAL = "vla-eval:"
_REMOTE = (_OPENPI, _VLA_EVAL)


def load_policy(name: str, space: gymnasium.Space[Any], *, chunk: int = 1) -> Policy:
    """The policy that ``name`` stands for.

    The object that ``<module>:<name>`` stands for is taken as follows, the first that fits:

    1. It has a method ``act`` and is not a class: it is the policy.
    2. It is an ``nn.Module``: it is wrapped in a `TorchPolicy`.
    3. It is a class, or ``@<path>`` follows, or it can be called without any argument but
       ``action_space`` and ``chunk`` and has no parameter ``batch`` or ``obs``: it is called, and
       what it returns is taken by these same rules, but never called to make a policy again. It
       gets the path, if there is one, as its first argument, and ``action_space=`` and ``chunk=``
       if it has parameters of these names.
    4. Any other function is the policy's ``act``: a function of a batch, or of ``obs``.

    Args:
        name: See this module's description.
        space: Action space of a single env.
        chunk: Actions per decision of the built-in policies, and what a factory is told; the
            expert's steps per request if it is more than 1.

    Raises:
        UnknownName: There is no such policy, module or attribute; with the closest.
        MissingExtra: The module needs something that is not installed.
        PolicyError: There is no such file, or what was found is no policy.
    """
    built_in: dict[str, Callable[[], Policy]] = {
        "expert": lambda: ExpertPolicy(chunk) if chunk > 1 else ExpertPolicy(),
        "random": lambda: RandomPolicy(space, chunk),
        "zero": lambda: ZeroPolicy(space, chunk),
    }
    if name in built_in:
        return built_in[name]()
    if name.startswith(_REPLAY) and name != _REPLAY:
        return ReplayPolicy(name.removeprefix(_REPLAY), chunk)
    if name.startswith(_OPENPI):
        from polyarm.policies.websocket import openpi_policy

        return openpi_policy(name.removeprefix(_OPENPI))
    if name.startswith(_VLA_EVAL):
        from polyarm.policies.vla_eval import vla_eval_policy

        return vla_eval_policy(name.removeprefix(_VLA_EVAL))
    if name.startswith(_LEROBOT) and name != _LEROBOT:
        return lerobot_policy(name.removeprefix(_LEROBOT))
    if ":" not in name and name.endswith(".pt"):
        from polyarm.policies.torch import load_torchscript

        return load_torchscript(Path(name))
    location, at, path = name.partition("@")
    module_name, colon, attribute = location.partition(":")
    if not (colon and module_name and attribute) or location.startswith((_REPLAY, _LEROBOT)):
        raise UnknownName("policy", name, _NAMES)
    found = _attribute(_module(module_name), attribute)
    if at or isinstance(found, type) or _is_factory(found):
        if not callable(found):
            raise PolicyError(f"{location} cannot be called with a path: it is {found!r}")
        asked = {"action_space": space, "chunk": chunk}
        wanted = {key: asked[key] for key in asked if key in _parameters(found)}
        found = _made(name, found, [path] if at else [], wanted)
    return as_policy(found, name)


def _made(name: str, make: Callable[..., Any], path: list[str], wanted: dict[str, Any]) -> Any:
    try:
        return make(*path, **wanted)
    except PolyarmError:
        raise
    except Exception as error:
        hint = ""
        if isinstance(error, TypeError) and not path:
            hint = f". What it is to be made from is given behind an @: {name}@PATH"
        raise PolicyError(f"{name} could not be made: {raised(error)}{hint}") from error


def expand_policies(name: str) -> list[tuple[str, str]]:
    """One ``(label, name)`` per policy that ``name`` stands for; several if its path is a glob.

    Args:
        name: As for `load_policy`; ``*``, ``?``, ``[…]`` and ``**`` in its path are a glob.

    Returns:
        In natural order (``step_9`` before ``step_10``), links to others of them left out. Labels
        are short and unique: the parts of the paths that differ, without the suffix. A name without
        a path is its own label.

    Raises:
        PolicyError: The glob matches nothing.
    """
    prefix, path, suffix = _split(name)
    if not path:
        return [(name, name)]
    if not glob.has_magic(path) or Path(path).exists():
        return [(Path(path).stem or name, name)]
    paths = sorted(glob.glob(path, recursive=True), key=_natural)  # noqa: PTH207
    if not paths:
        raise PolicyError(f"no file matches {path!r} of the policy {name!r} in {Path.cwd()}")
    paths = _without_links(paths)
    labels = _labels(paths) if len(paths) > 1 else [_matched(path, paths[0])]
    named = zip(labels, paths, strict=True)
    return [(label, prefix + one + suffix) for label, one in named]


def checkpoint_path(name: str) -> Path | None:
    """The file or folder in a policy's name, if there is one; not that of a replay."""
    prefix, path, _ = _split(name)
    return Path(path) if path and prefix != _REPLAY and Path(path).exists() else None


def identity(name: str) -> str:
    """A policy's name as far as it tells what is evaluated: a server may move to another address.

    What is served says its fingerprint.
    """
    return name.partition(":")[0] if name.startswith(_REMOTE) else name


def fits_any_space(name: str) -> bool:
    """Whether a policy is the same for all action spaces: its server or checkpoint says its own."""
    return name.startswith((_LEROBOT, *_REMOTE))


def source_digest(name: str) -> str:
    """A digest of the module that ``<module>:<name>`` names; "" for other policies.

    Of LeRobot's checkpoints, which are known by their bytes, it is one of what they need besides.
    """
    if name.startswith(_LEROBOT):
        return "+".join(files_digest(path) for path in companions(name.removeprefix(_LEROBOT)))
    module, colon, _ = name.partition("@")[0].partition(":")
    if not colon or name.startswith((_REPLAY, *_REMOTE)):
        return ""
    return source_file_digest(_module(module).__name__)


def _split(name: str) -> tuple[str, str, str]:
    """What comes before the path in a policy's name, the path or "", and what comes behind."""
    if name.startswith(_REPLAY):
        return _REPLAY, name.removeprefix(_REPLAY), ""
    if name.startswith(_REMOTE):
        return name, "", ""
    if name.startswith(_LEROBOT):
        path, renaming = split_name(name.removeprefix(_LEROBOT))
        return _LEROBOT, path, f"@{renaming}" if renaming else ""
    if ":" not in name.partition("@")[0]:
        return "", name if name.endswith(".pt") else "", ""
    location, at, path = name.partition("@")
    return location + at, path, ""


def _natural(path: str) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", path)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _without_links(paths: Sequence[str]) -> list[str]:
    """Each checkpoint once: LeRobot's ``checkpoints/last`` is a link to the newest of them."""
    found: dict[Path, str] = {}
    for path in sorted(paths, key=lambda path: Path(path).resolve() != Path(path).absolute()):
        found.setdefault(Path(path).resolve(), path)
    return [path for path in paths if path in found.values()]


def _matched(pattern: str, path: str) -> str:
    """What the last wildcard of a glob stands for in its only match, as if there were more."""
    found = Path(path)
    for part in reversed(Path(pattern).parts):
        if glob.has_magic(part):
            break
        found = found.parent
    return found.stem


def _labels(paths: Sequence[str]) -> list[str]:
    parts = [Path(path).with_suffix("").parts for path in paths]
    if len(set(parts)) < len(paths):
        parts = [Path(path).parts for path in paths]
    for end, rest in ((0, slice(1, None)), (-1, slice(None, -1))):
        while all(len(each) > 1 for each in parts) and len({each[end] for each in parts}) == 1:
            parts = [each[rest] for each in parts]
    return ["/".join(each) for each in parts]


def _module(name: str) -> ModuleType:
    look_here()  # for good: what a policy imports late lies beside it
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            near = [path.stem for path in Path.cwd().glob("*.py")]
            hint = f"Looked in {Path.cwd()} and where Python is installed."
            raise UnknownName("policy module", name, near, hint) from error
        raise MissingExtra(
            f"the policy's module {name!r} needs {missing!r}, which is not installed"
        ) from error
    except Exception as error:
        raise PolicyError(f"importing the policy's module {name!r}: {raised(error)}") from error


def _attribute(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            names = [other for other in vars(found) if not other.startswith("_")]
            raise UnknownName(f"name in {module.__name__}", part, names)
        found = getattr(found, part)
    return found


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some callables written in C have no signature
        return {}


def _is_factory(found: Any) -> bool:
    if not callable(found) or hasattr(found, "act") or _is_torch_module(found):
        return False
    parameters = _parameters(found)
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return {*required} <= {"action_space", "chunk"} and not {"batch", "obs"} & {*parameters}


def _is_torch_module(found: Any) -> bool:
    # What is an nn.Module has imported PyTorch by now.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(found, torch.nn.Module)


def as_policy(found: Any, name: str = "") -> Policy:
    """A policy from an object: one already, an ``nn.Module``, or a function of a batch.

    Args:
        found: The object.
        name: What it is called in messages and results.

    Raises:
        PolicyError: It is none of these.
    """
    name = name or getattr(found, "__qualname__", type(found).__qualname__)
    if callable(getattr(found, "act", None)) and not isinstance(found, type):
        if not callable(getattr(found, "begin", None)):
            raise PolicyError(
                f"{name} is no policy yet: {type(found).__qualname__} has act(), but no"
                f" begin(self, episodes), which forgets what is kept for these episodes"
            )
        policy: Policy = found
        return policy
    if _is_torch_module(found):
        from polyarm.policies.torch import TorchPolicy

        return TorchPolicy(found)
    if not callable(found) or isinstance(found, type) or _is_factory(found):
        raise PolicyError(
            f"{name} is no policy: found {found!r} ({type(found).__qualname__}), expected an object"
            f" with act(batch) and begin(episodes), or a function of a batch"
        )
    return FunctionPolicy(found, name)

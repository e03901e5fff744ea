"""The public API is what `polyarm/__init__.py` exports, and importing it is light."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import polyarm
from polyarm import errors

PUBLIC = {
    "Batch",
    "BrokenSuite",
    "BuildError",
    "ClosedEnv",
    "DisplayError",
    "EnvCallError",
    "EnvDescription",
    "EnvSpec",
    "EpisodeKey",
    "EpisodeResult",
    "EvalOptions",
    "Evaluator",
    "Footprint",
    "ForkMode",
    "ForkServerDied",
    "HostLimit",
    "InvalidAction",
    "InvalidCall",
    "InvalidObservation",
    "MissingExtra",
    "ObservedEpisode",
    "Observer",
    "Outcome",
    "Policy",
    "PolicyError",
    "PolicyOutput",
    "PolyarmError",
    "RankLost",
    "RayVectorEnv",
    "Ready",
    "Requirement",
    "Results",
    "Rollout",
    "RolloutGroup",
    "RunConflict",
    "STREAM",
    "SlotError",
    "StoppedEarly",
    "StorageError",
    "Suite",
    "SuiteEnv",
    "Task",
    "TorchVectorEnv",
    "UnknownName",
    "UnsupportedSpace",
    "VectorEnv",
    "WireError",
    "WorkerDied",
    "WorkerError",
    "__version__",
    "collect",
    "evaluate",
    "is_informative",
    "make_vec",
}


def test_the_exported_names_are_these_and_no_others():
    assert set(polyarm.__all__) == PUBLIC
    assert set(dir(polyarm)) == PUBLIC


def test_every_exported_name_can_be_had():
    for name in PUBLIC:
        assert getattr(polyarm, name) is not None


def test_every_exception_is_exported():
    public = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert public <= PUBLIC


def test_type_checkers_see_the_names_that_load_lazily():
    tree = ast.parse(Path(polyarm.__file__).read_text())
    seen = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polyarm.")
        for alias in node.names
    }
    assert seen == PUBLIC - {"__version__"}


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(polyarm, "no_such_name")


def test_importing_polyarm_imports_neither_numpy_nor_gymnasium():
    code = "import sys, polyarm; sys.exit(bool({'numpy', 'gymnasium', 'tyro'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_catching_an_error_does_not_import_numpy():
    code = "import sys, polyarm; polyarm.PolyarmError; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_training_exports_what_its_page_shows_and_imports_no_pytorch():
    pytest.importorskip("torch", reason="pip install 'polyarm[torch]'")
    from polyarm import training

    for name in training.__all__:
        assert getattr(training, name) is not None
    assert not hasattr(training, "no_such_name")
    code = "import sys; from polyarm.training import TrainOptions; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)

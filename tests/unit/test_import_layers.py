"""The layer rule of docs/architecture.md, read off the import statements of the package."""

import ast
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import polyarm

ROOT = Path(polyarm.__file__).parent
SHARED = {"contracts", "errors", "signatures"}
TOP = {"rollout", "vector", "registry", "display", "report", "policies", "recording"}
ALLOWED = {
    "contracts": set(),
    "errors": set(),
    "signatures": set(),
    "registry": set(),
    "display": set(),
    "suites": set(),
    "policies": set(),
    "recording": set(),
    "report": set(),
    "vector": {"registry", "display"},
    "rollout": {"vector", "registry", "policies", "recording", "report"},
    "distributed": TOP,
    "training": TOP | {"distributed"},
    "bench": TOP | {"distributed"},
    # RIPT-VLA is about LIBERO alone: its catalogue and rules, which import no simulator.
    "compat": TOP | {"suites"},
    "serving": {"policies", "rollout"},
    "testing": {"registry", "vector"},
    # It reads RLBench's folder with the functions that set it up; nobody but cli imports it.
    "doctor": {"registry", "display", "vector", "suites"},
}
# The package itself exports from everywhere, lazily; `python -m polyarm` starts the command.
DOORS = {"__init__", "__main__"}

HEAVY = {
    "metaworld", "mujoco", "libero", "robosuite", "bddl", "rlbench", "pyrep", "dm_control",
    "OpenGL", "glfw", "torch", "ray",
}  # fmt: skip

Import = tuple[Path, int, str]


def test_rooms_import_only_what_the_layer_rule_allows():
    broken = []
    for path, line, name in imports(at_runtime_only=False):
        room, other = room_of(path), inner_room(name)
        if room in DOORS or other is None or other in {room, *SHARED}:
            continue
        if room == "cli" or other in ALLOWED[room]:
            continue
        broken.append(f"{path.relative_to(ROOT)}:{line}: {room} must not import {other}")
    assert not broken, "\n".join(broken)


def test_contracts_and_errors_stand_alone():
    rooms = {inner_room(name) for path, _, name in imports() if room_of(path) in SHARED}
    assert rooms <= SHARED | {None}


def test_every_room_is_in_the_layer_rule():
    rooms = {room_of(path) for path in ROOT.rglob("*.py")}
    assert rooms <= set(ALLOWED) | DOORS | {"cli"}


def test_only_the_worker_side_of_a_suite_imports_a_simulator_at_its_top():
    broken = [
        f"{path.relative_to(ROOT)}:{line}: {name} must be imported inside a function"
        for path, line, name in imports(at_top_only=True)
        if is_heavy(name) and room_of(path) != "suites"
    ]
    assert not broken, "\n".join(broken)


def test_nothing_that_the_trainer_imports_pulls_in_a_simulator():
    tops: dict[str, set[str]] = {}
    for path, _, name in imports(at_top_only=True):
        tops.setdefault(module_name(path), set()).add(name)
    reached, waiting = set(), {name for name in tops if not name.startswith("polyarm.suites.")}
    waiting |= {point.value.partition(":")[0] for point in entry_points(group="polyarm.suites")}
    while waiting:
        module = waiting.pop()
        reached.add(module)
        heavy = sorted(name for name in tops.get(module, ()) if is_heavy(name))
        assert not heavy, f"{module} is imported in the trainer and imports {heavy} at its top"
        waiting |= (tops.get(module, set()) & set(tops)) - reached


def test_only_suites_import_a_simulator_at_all():
    simulators = HEAVY - {"torch", "ray"}
    rooms = {room_of(path) for path, _, name in imports() if name.partition(".")[0] in simulators}
    assert rooms <= {"suites", "display"}


def imports(*, at_top_only: bool = False, at_runtime_only: bool = True) -> Iterator[Import]:
    """Every import statement of the package as (file, line, imported module)."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in walk(ast.parse(path.read_text()), at_top_only, at_runtime_only):
            if isinstance(node, ast.Import):
                yield from ((path, node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
                yield from ((path, node.lineno, name) for name in modules_of(node))


def modules_of(node: ast.ImportFrom) -> list[str]:
    if node.module == "polyarm":  # `from polyarm import vector` names a room
        return [f"polyarm.{alias.name}" for alias in node.names]
    return [node.module or ""]


def walk(node: ast.AST, at_top_only: bool, at_runtime_only: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if at_runtime_only and isinstance(child, ast.If) and is_type_checking(child.test):
            continue
        if at_top_only and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield child
        yield from walk(child, at_top_only, at_runtime_only)


def is_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in ast.unparse(test)


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def inner_room(module: str) -> str | None:
    package, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    exists = (ROOT / room).is_dir() or (ROOT / f"{room}.py").exists()
    return room if package == "polyarm" and room and exists else None


def is_heavy(module: str) -> bool:
    return module.partition(".")[0] in HEAVY


def module_name(path: Path) -> str:
    return ".".join(["polyarm", *path.relative_to(ROOT).with_suffix("").parts])

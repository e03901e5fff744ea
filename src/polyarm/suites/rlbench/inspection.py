"""What a Python has of PyRep and RLBench, found out by a child of that Python that imports neither.

The set-up and the doctor ask the same question, each with a child process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PACKAGES = {"pyrep": "PyRep", "rlbench": "RLBench"}

# Not from the current folder, where a checkout would hide what is installed; -P does the same
# as of Python 3.11, but RLBench's may be older.
OUTSIDE = "import sys; sys.path = [*filter(None, sys.path)]\n"

SCRIPT = f"""{OUTSIDE}
import importlib.metadata as metadata, importlib.util, glob, json, os
found = {{"packages": {{}}, "extension": "", "versions": {{}}}}
for name in ("pyrep", "rlbench"):
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:  # any folder of that name has a spec
        continue
    folder = (list(spec.submodule_search_locations or []) or [""])[0]
    try:
        package = metadata.distribution(name)
        origin = json.loads(package.read_text("direct_url.json") or "{{}}")
        found["packages"][name] = {{"version": package.version, "origin": origin, "folder": ""}}
    except metadata.PackageNotFoundError:
        found["packages"][name] = {{"version": "", "origin": {{}}, "folder": folder}}
    if name == "pyrep":
        built = sorted(glob.glob(os.path.join(folder, "backend", "_sim_cffi*.so")))
        found["extension"] = built[0] if built else ""
for name in sys.argv[1:]:
    try:
        found["versions"][name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
"""Prints what `Facts.of` reads; arguments are distributions whose versions are wanted."""


@dataclass(frozen=True, slots=True)
class Package:
    """PyRep or RLBench as it is installed.

    Attributes:
        version: "" if it is a folder on Python's path and no distribution.
        origin: The record of where it was installed from (``direct_url.json``).
        folder: Where it lies, if it is no distribution.
    """

    version: str
    origin: Mapping[str, Any]
    folder: str

    @property
    def kind(self) -> str:
        """The kind of its origin."""
        if "vcs_info" in self.origin:
            return "git"
        if self.folder or "dir_info" in self.origin:
            return "a folder"
        return "an archive" if "url" in self.origin else "an index"

    @property
    def words(self) -> str:
        """Its origin in words."""
        if self.kind == "git":
            commit = str(self.origin["vcs_info"].get("commit_id", ""))[:12]
            return f"git {self.origin.get('url', '')}@{commit}"
        if self.kind == "an index":
            return "from a package index"
        return f"from {self.folder or self.origin.get('url', '')}"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a Python has.

    Attributes:
        packages: PyRep and RLBench by the names they are imported by, if they are there.
        extension: PyRep's compiled part, or "".
        versions: Of the distributions that were asked for and are there.
    """

    packages: Mapping[str, Package] = field(default_factory=dict)
    extension: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, stdout: str) -> Facts:
        """What the script printed, last: site customisations may print before it.

        Raises:
            ValueError: It printed something else.
        """
        data: dict[str, Any] = json.loads((stdout.splitlines() or [""])[-1])
        packages = {name: Package(**one) for name, one in data["packages"].items()}
        return cls(packages, data["extension"], data["versions"])

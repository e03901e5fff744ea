"""The licences that a user of RLBench accepts; asking for it is left to the command line."""

from __future__ import annotations

import json

from polyarm.errors import InvalidCall
from polyarm.suites.cache import write_whole
from polyarm.suites.rlbench.environment import suite_folder

FLAG = "--accept-licences"

TERMS = {
    "CoppeliaSim Edu 4.1.0": "for educational use; any other needs another edition. Its licence "
    "lies in its folder. https://www.coppeliarobotics.com",
    "RLBench": "for non-commercial, internal or academic research; on a shared machine only for "
    "users who have accepted it too; publications name it, and Imperial College London gets a "
    "copy. https://github.com/stepjam/RLBench/blob/master/LICENSE",
    "PyRep": "MIT. https://github.com/stepjam/PyRep/blob/master/LICENSE",
}
"""In short; what binds are the licences themselves."""


def accepted() -> bool:
    """Whether these licences were accepted before."""
    file = suite_folder() / "licences.json"
    try:
        return bool(json.loads(file.read_text())["accepted"] == sorted(TERMS))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def require(*, accept: bool) -> None:
    """Go on only if the licences are accepted, now or before; writes down that they are.

    Raises:
        InvalidCall: They are not; names them and the flag.
    """
    if accepted():
        return
    if not accept:
        terms = "\n".join(f"  {name}: {text}" for name, text in TERMS.items())
        raise InvalidCall(
            f"RLBench's licences have not been accepted:\n{terms}\nRead them; if you accept them "
            f"give: polyarm setup rlbench {FLAG}"
        )
    folder = suite_folder()
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "licences.json", json.dumps({"accepted": sorted(TERMS)}) + "\n")

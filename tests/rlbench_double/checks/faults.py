"""Two short episodes for each entry of SWITCHES, in a child; prints how each child ended.

The children are forked before anything is launched, which saves importing RLBench for each.
"""

import json
import os
import sys
import traceback

from double_session import STILL, make


def play() -> None:
    _, task = make()
    for _ in range(2):
        task.reset()
        for _ in range(3):
            task.step(STILL)


for switch in json.loads(os.environ["SWITCHES"]):
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        with open(reader) as stderr:
            said = stderr.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(json.dumps([switch, status, said]) + "\n")
        continue
    os.dup2(writer, 2)
    os.environ["RLBENCH_DOUBLE"] = switch
    try:
        play()
    except Exception:  # noqa: BLE001  it is printed, as it would be at the end of a script
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

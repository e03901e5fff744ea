"""EGL's devices, their CUDA twins, and which of them this rank gets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence

from polyarm.display import egl
from polyarm.display.egl import EglDevice
from polyarm.display.rank import cuda_index, local_rank
from polyarm.doctor import child
from polyarm.doctor.case import Case
from polyarm.doctor.findings import Finding, install

TIMEOUT_S = 120.0

MESA_FIX_PACKAGES = ("libegl1", "libopengl0", "libgl1-mesa-dri")


def gpu_fix(case: Case) -> str:
    """How EGL gets to see the NVIDIA GPUs that are there."""
    given = os.environ.get("NVIDIA_DRIVER_CAPABILITIES")
    if given is not None and not {"all", "graphics"} & set(given.split(",")):
        start = f"start the container with -e NVIDIA_DRIVER_CAPABILITIES=all (it has {given})"
        return f"{start}, then {install(MESA_FIX_PACKAGES)}"
    major = case.gpus[0].driver.partition(".")[0] if case.gpus else "<driver>"
    return (
        f"{install([*MESA_FIX_PACKAGES, f'libnvidia-gl-{major}'])}; in a container instead of the "
        f"last: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all …"
    )


def check(case: Case) -> Iterator[Finding]:
    """Every device with what renders on it, and how polyarm chooses."""
    name = "EGL devices"
    ended = child.run_python(egl.__file__, "devices", timeout_s=TIMEOUT_S)
    if "is not installed" in ended.stderr:
        return  # told by the libraries, and again by the frame that is not rendered
    if ended.status != 0:
        fix = gpu_fix(case) if case.gpus else install(MESA_FIX_PACKAGES)
        finding = Finding(name, "broken", ended.complaint, fix)
        yield finding if case.gpus and not case.needs_x else finding.optional()
        return
    devices = [EglDevice(**one) for one in json.loads(ended.stdout)]
    yield from _listing(name, devices)
    if case.gpus and all(one.cuda is None for one in devices):
        text = f"none of them is one of the {len(case.gpus)} NVIDIA GPUs"
        finding = Finding(name, "broken", text, gpu_fix(case))
        yield finding.optional() if case.needs_x else finding
        return
    twins = {one.index: one.cuda for one in devices if one.cuda is not None}
    if any(index != cuda for index, cuda in twins.items()):
        order = ", ".join(f"EGL {index} is CUDA {cuda}" for index, cuda in twins.items())
        text = f"{order}: polyarm asks each device for its CUDA number and maps by it"
        fix = f"leave {egl.DEVICE_VARIABLE} unset; it counts as EGL does"
        yield Finding("EGL and CUDA order", "hint", text, fix)
    yield _of_this_rank(devices)


def _listing(name: str, devices: Sequence[EglDevice]) -> Iterator[Finding]:
    for one in devices:
        twin = "" if one.cuda is None else f" = CUDA {one.cuda}"
        label = f"{one.index}{twin}"
        if one.renderer:
            yield Finding(name, "ok", f"{label}: {one.renderer.split(', device')[0]}")
        else:
            # Mesa lists its software device once more for each card that it cannot open.
            fix = "" if one.cuda is None else "look at nvidia-smi and dmesg: the GPU may be lost"
            yield Finding(name, "warning", f"{label}: {one.complaint}", fix)


def _of_this_rank(devices: Sequence[EglDevice]) -> Finding:
    name, rank = "EGL of this rank", local_rank()
    who = "" if rank is None else f"rank {rank}: "
    chosen = os.environ.get(egl.DEVICE_VARIABLE)
    if chosen is not None:
        if not chosen.isdecimal() or int(chosen) >= len(devices):
            text = (
                f"{egl.DEVICE_VARIABLE} is {chosen!r}, but the devices are 0 to {len(devices) - 1}"
            )
            return Finding(name, "broken", text, f"unset {egl.DEVICE_VARIABLE}")
        return Finding(name, "ok", f"{who}EGL {chosen}, named by {egl.DEVICE_VARIABLE}")
    cuda, twins = cuda_index(), [one.cuda for one in devices]
    if cuda is None or not any(twin is not None for twin in twins):
        first = next((one.index for one in devices if one.renderer), None)
        if first is None:
            return Finding(name, "warning", "no device gives a context")
        return Finding(name, "ok", f"{who}EGL {first}, the first that works")
    if cuda not in twins:
        text = f"{who}CUDA {cuda} has no EGL device"
        fix = "let the container see this GPU, or correct CUDA_VISIBLE_DEVICES"
        return Finding(name, "broken", text, fix)
    return Finding(name, "ok", f"{who}CUDA {cuda}, which is EGL {twins.index(cuda)}")

"""PyTorch, imported when something is trained."""

from __future__ import annotations

import os
from typing import Any

from polyarm.display.rank import local_rank
from polyarm.errors import MissingExtra


def import_torch() -> Any:
    """PyTorch.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra(
            "train needs PyTorch: pip install 'polyarm[torch]', or see pytorch.org"
        ) from error
    return torch


def chosen_device(name: str) -> Any:
    """``torch.device`` of a name.

    ``"auto"`` is CUDA where there is any. Ranks of one machine that see several GPUs have one each.
    """
    torch = import_torch()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        index = device.index
        if index is None:
            index = (local_rank(os.environ) or 0) % max(1, torch.cuda.device_count())
        torch.cuda.set_device(index)
        device = torch.device("cuda", index)
    return device

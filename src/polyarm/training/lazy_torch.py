"""PyTorch, imported when something is trained."""

from __future__ import annotations

from typing import Any

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
    """``torch.device`` of a name; ``"auto"`` is CUDA where there is any."""
    torch = import_torch()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)

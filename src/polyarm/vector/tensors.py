"""Observations as tensors: which leaves are frames, and what becomes of them.

The one formula, on every device: ``uint8 / 255`` in float32, rounded once to the dtype asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

from polyarm.errors import InvalidCall, MissingExtra, UnknownName
from polyarm.vector.layout import Array, BlockLayout, Leaf, Path, nest, pick

_DTYPES = ("float32", "bfloat16", "float16", "uint8")
_CHANNELS = (1, 3, 4)
Tensor = Any


def import_torch() -> Any:
    """PyTorch.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra(
            "tensors need PyTorch: pip install 'polyarm[torch]', or see pytorch.org"
        ) from error
    return torch


def find_device(device: Any) -> Any:
    """The device, with its number if it is a GPU. Only asking for a GPU touches CUDA.

    Raises:
        InvalidCall: There is no such device.
    """
    torch = import_torch()
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidCall(f"{device!r} is no device of PyTorch: {error}") from error
    if found.type == "cpu":
        return found
    if found.type != "cuda":
        raise InvalidCall(f"to_torch gives tensors on 'cpu' or 'cuda', not on {str(found)!r}")
    if not torch.cuda.is_available():
        why = "is built without CUDA" if torch.version.cuda is None else "finds no GPU it can use"
        raise InvalidCall(
            f"to_torch({str(found)!r}), but this PyTorch ({torch.__version__}) {why};"
            f" to_torch('cpu') has the same interface"
        )
    index = torch.cuda.current_device() if found.index is None else found.index
    if index >= (count := torch.cuda.device_count()):
        raise InvalidCall(f"there is no GPU {index} for PyTorch, which sees {count}")
    return torch.device("cuda", index)


def is_gpu(device: Any) -> bool:
    """Whether tensors there must be copied to and fro."""
    return bool(device.type == "cuda")


@dataclass(frozen=True, slots=True)
class FrameFormat:
    """What frames, uint8 ``(…, H, W, C)`` in the block, are turned into.

    Attributes:
        dtype: A floating dtype of PyTorch, or ``torch.uint8``.
        channels_first: Whether they become ``(…, C, H, W)``.
        normalize: Whether they are divided by 255.
    """

    dtype: Any
    channels_first: bool
    normalize: bool

    @classmethod
    def of(cls, dtype: Any, *, channels_first: bool, normalize: bool | None) -> FrameFormat:
        """A format, checked; ``normalize=None`` normalises where the dtype has fractions.

        Raises:
            UnknownName: A dtype that frames are not given in.
            InvalidCall: Normalised uint8.
        """
        torch = import_torch()
        name = str(dtype).removeprefix("torch.")
        if name not in _DTYPES:
            raise UnknownName("dtype of frames", name, _DTYPES)
        if name == "uint8" and normalize:
            raise InvalidCall("uint8 has no room for normalised frames: ask for a floating dtype")
        floating = name != "uint8"
        return cls(getattr(torch, name), channels_first, floating and normalize is not False)

    def convert(self, frames: Tensor, scale: Tensor) -> Tensor:
        """Frames in this format: contiguous and in new memory, or a view where they stay uint8.

        Args:
            frames: uint8 ``(…, H, W, C)``.
            scale: 255 as a float32 tensor on the same device. A Python number would not do:
                PyTorch multiplies by its reciprocal on a GPU, which rounds differently.
        """
        torch = import_torch()
        if self.channels_first:
            frames = frames.movedim(-1, -3)
        if self.dtype is torch.uint8:
            return frames
        converted = torch.empty(frames.shape, dtype=self.dtype, device=frames.device)
        if self.normalize:
            return torch.div(frames, scale, out=converted)
        return converted.copy_(frames)


class Tensors:
    """Observations of one space as tensors on one device.

    Args:
        layout: Layout of the block.
        space: The observation space as delivered.
        device: A device of PyTorch.
        frames: What frames become.
    """

    def __init__(
        self, layout: BlockLayout, space: gymnasium.Space[Any], device: Any, frames: FrameFormat
    ) -> None:
        self._torch = import_torch()
        self._leaves = layout.observation
        self._space = space
        self._device = device
        self._format = frames
        self._scale = self._torch.tensor(255.0, dtype=self._torch.float32, device=device)

    def of(self, obs: Any) -> Any:
        """An observation's arrays as tensors: on the CPU, views where nothing changes.

        Args:
            obs: Arrays ``(n, …)``, structured like the observation space.
        """
        return self.nested(lambda leaf: self._shaped(leaf, self._loaded(pick(obs, leaf.path))))

    def shaped(self, staged: Mapping[Path, Tensor]) -> Any:
        """What was staged on the device as an observation, in memory of its own."""
        return self.nested(lambda leaf: self._owned(leaf, staged[leaf.path]))

    def nested(self, make: Callable[[Leaf], Any]) -> Any:
        """One value per leaf, structured like the observation."""
        return nest(self._space, {leaf.path: make(leaf) for leaf in self._leaves})

    def _loaded(self, array: Array) -> Tensor:
        writable = array if array.flags.writeable else array.copy()
        return self._torch.from_numpy(writable).to(self._device)

    def _shaped(self, leaf: Leaf, tensor: Tensor) -> Tensor:
        return self._format.convert(tensor, self._scale) if is_image(leaf) else tensor

    def _owned(self, leaf: Leaf, staged: Tensor) -> Tensor:
        keeps = not is_image(leaf) or self._format.dtype is self._torch.uint8
        return self._shaped(leaf, staged.clone() if keeps else staged)


def is_image(leaf: Leaf) -> bool:
    """Whether a leaf holds frames: uint8 ``(H, W, C)`` with 1, 3 or 4 channels."""
    return leaf.dtype == "uint8" and len(leaf.shape) == 3 and leaf.shape[-1] in _CHANNELS

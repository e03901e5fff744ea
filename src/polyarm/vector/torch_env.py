"""A vector env whose observations, rewards, flags and actions are tensors on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyarm.contracts import map_leaves, stack_leaves, to_host
from polyarm.vector.gpu_copies import GpuCopies
from polyarm.vector.layout import Array, Slots
from polyarm.vector.ledger import Ledger
from polyarm.vector.ring import Ring
from polyarm.vector.tensors import FrameFormat, Tensor, Tensors, find_device, import_torch, is_gpu

if TYPE_CHECKING:
    from polyarm.vector.asynchronous import Ready
    from polyarm.vector.env import VectorEnv

TorchStep = tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]


class TorchVectorEnv:
    """The calls of a `VectorEnv` that carry data, with tensors; made by `VectorEnv.to_torch`.

    Observations, rewards (float32) and flags are tensors on ``device``; infos stay on the host.
    Actions may be tensors on any device, or arrays. Everything else is asked of ``envs``, which
    may be used directly in between.

    On a GPU, every tensor is the caller's own, ready for the caller's current stream; no call
    waits for a copy that is not in its way. On the CPU, leaves that need no conversion are views of
    the block and live as long as the arrays of ``envs`` do: until the second following step with
    the default ring, and until the next call of ``recv`` or ``observe``.

    Args:
        envs: The vector env.
        ring: Its rows.
        ledger: Who of its slots is idle.
        gpu_copies: Its copies to GPUs.
        device: Where tensors are to be.
        frames: What frames become.
    """

    def __init__(
        self,
        envs: VectorEnv,
        ring: Ring,
        ledger: Ledger,
        gpu_copies: GpuCopies,
        device: Any,
        frames: FrameFormat,
    ) -> None:
        self.envs = envs
        self.num_envs = envs.num_envs
        self.device = find_device(device)
        self._ring = ring
        self._ledger = ledger
        self._copies = gpu_copies.to(self.device, ring) if is_gpu(self.device) else None
        self._tensors = Tensors(ring.layout, envs.single_observation_space, self.device, frames)

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """`VectorEnv.reset`, with tensors."""
        obs, info = self.envs.reset(**arguments)
        return self._delivered(obs, self._ledger.all, None), info

    def step(self, actions: Any) -> TorchStep:
        """`VectorEnv.step`, with tensors."""
        obs, *rest, info = self.envs.step(_landed(actions))
        return (self._delivered(obs, self._ledger.all, None), *self._uploaded(*rest), info)

    def step_chunk(self, actions: Any) -> TorchStep:
        """`VectorEnv.step_chunk`, with tensors."""
        obs, rewards, *flags, info = self.envs.step_chunk(_landed(actions))
        obs = self._delivered(obs, self._ledger.all, rewards.shape[1])
        return (obs, *self._uploaded(rewards, *flags), info)

    def send(self, actions: Any, slots: Sequence[int] | Slots | None = None) -> None:
        """`VectorEnv.send`, with tensors."""
        self.envs.send(_landed(actions), slots)

    def recv(self, min_slots: int = 1, timeout_s: float | None = None) -> Ready:
        """`VectorEnv.recv`, with tensors; ``slots`` stay an array.

        On a GPU, frames are copied from where they lie, without being gathered on the host.
        """
        every = self._ring.layout.every
        ready = self.envs.recv(min_slots, timeout_s, observe=every or self._copies is None)
        # With every step's frames, rows of a batch may differ in length: they are put together.
        obs = (
            self._tensors.of(ready.obs) if every else self._delivered(ready.obs, ready.slots, None)
        )
        rewards, *flags = self._uploaded(ready.rewards, ready.terminated, ready.truncated)
        return ready._replace(obs=obs, rewards=rewards, terminated=flags[0], truncated=flags[1])

    def observe(self, slots: Sequence[int] | Slots | None = None) -> Any:
        """The newest observations of idle slots, or of all; see `VectorEnv.observe`."""
        chosen = self._ledger.idle(slots, "observe")
        if self._copies is None or self._ring.layout.every:
            return self._tensors.of(self.envs.observe(chosen))
        return self._delivered(None, chosen, None)

    def tensors(self, obs: Any) -> Any:
        """Other observations in the same form.

        Args:
            obs: Arrays ``(n, …)``, structured like an observation, or a list of single ones, such
                as ``info["final_obs"][info["_final_obs"]]``.
        """
        several = isinstance(obs, list) or (isinstance(obs, np.ndarray) and obs.dtype == object)
        return self._tensors.of(stack_leaves(list(obs)) if several else obs)

    def _delivered(self, obs: Any, slots: Slots, chunk: int | None) -> Any:
        """Observations of slots: the arrays as tensors, or copies of the rows where they lie."""
        if self._copies is None:
            return self._tensors.of(obs)
        return self._copies.fetch(self._ring, slots, chunk, self._tensors.shaped)

    def _uploaded(self, rewards: Array, *flags: Array) -> tuple[Tensor, ...]:
        """Rewards and flags, which are copies already: small, so they travel in one."""
        torch = import_torch()
        arrays = [rewards.astype(np.float32), *flags]
        if self._copies is None or not rewards.size:
            return tuple(torch.from_numpy(array).to(self.device) for array in arrays)
        packed = np.concatenate([np.ravel(array).view(np.uint8) for array in arrays])
        # From pinned memory that PyTorch keeps until the copy has ended, on the caller's stream.
        sent = torch.from_numpy(packed).pin_memory().to(self.device, non_blocking=True)
        parts = sent.split([array.nbytes for array in arrays])
        kinds = [torch.float32, *[torch.bool] * len(flags)]
        return tuple(
            part.view(kind).view(array.shape)
            for part, kind, array in zip(parts, kinds, arrays, strict=True)
        )


def _landed(actions: Any) -> Any:
    """Actions, tensors on any device or not, as arrays; they are there when this returns."""
    torch = import_torch()
    streams = set()

    def landed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_cuda:
            return to_host(value)
        value = value.detach()
        if value.dtype is torch.bfloat16:
            value = value.float()
        pinned = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=True)
        pinned.copy_(value, non_blocking=True)
        streams.add(torch.cuda.current_stream(value.device))
        return pinned.numpy()

    arrays = map_leaves(landed, actions)
    for stream in streams:
        stream.synchronize()
    return arrays

"""A PyTorch module as a policy.

A matrix product may sum in another order when the batch has another size, so a row's actions can
differ in the last bits between batches, and an episode with them. ``batch_invariant=True`` makes
every forward pass the same size. That alone is not enough on every machine: the order may also
depend on a row's place in the batch, so the first rows are tried out at every place.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from polyarm.contracts import Batch, EpisodeKey, PolicyOutput, map_leaves, to_host
from polyarm.errors import InvalidCall, MissingExtra, PolicyError
from polyarm.policies.fingerprints import function_fingerprint

Array = NDArray[Any]
Decision = tuple[Array, dict[str, Array]]

_TRIED_ROWS = 8


class TorchPolicy:
    """Calls an ``nn.Module``, or any callable on tensors, under ``torch.inference_mode()``.

    The module gets one argument: the observations as a dict of tensors ``(B, …)`` on ``device``,
    or, where the observation has no other key than ``"state"``, that tensor alone. Frames stay
    uint8 ``(B, H, W, 3)``. It returns actions ``(B, K, …)`` or ``(B, …)``, or a pair of actions and
    a dict of extras ``(B, …)``. A module is moved to the device and kept in eval mode. Noise must
    come from the batch's generators, in ``to_inputs``, for an episode to depend on its key alone.

    Args:
        module: The module, or a callable.
        device: ``"auto"`` (CUDA where there is any), or what ``torch.device`` understands.
        batch_size: Rows per forward pass: at most so many, or exactly with ``batch_invariant``.
        batch_invariant: Give each row bit for bit the actions it would get in any other batch.
            Smaller batches are padded by repeating their first row; all of ``to_inputs``, module
            and ``to_actions`` see exactly ``batch_size`` rows. A machine that cannot keep this
            promise is mostly found out at the first decisions.
        to_inputs: From a `Batch` to the module's argument; arrays in it (also inside dicts, lists
            and tuples) become tensors on ``device``.
        to_actions: From what the module returns to actions, or actions and extras.

    Attributes:
        needs_frames: Whether the module looks at frames; set it to False if it does not.
        row_independent: Whether a row's actions are the same in any batch.
    """

    needs_frames = True

    def __init__(
        self,
        module: Callable[[Any], Any],
        *,
        device: str = "auto",
        batch_size: int | None = None,
        batch_invariant: bool = False,
        to_inputs: Callable[[Batch], Any] | None = None,
        to_actions: Callable[[Any], Any] | None = None,
    ) -> None:
        torch = _torch()
        if batch_size is not None and batch_size < 1:
            raise InvalidCall(f"a forward pass has at least 1 row, not batch_size={batch_size}")
        if batch_invariant and batch_size is None:
            raise InvalidCall("batch_invariant=True needs batch_size: the rows of every pass")
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        self._module = cast(Any, module)
        self._is_module = isinstance(module, torch.nn.Module)
        if self._is_module:
            self._module.to(self.device).eval()
        self._batch_size = batch_size
        self._to_inputs = to_inputs or _observations
        self._to_actions = to_actions or (lambda output: output)
        self._untried = _TRIED_ROWS if batch_invariant else 0
        self.row_independent = batch_invariant

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The module's class, its size, a digest of its weights as they are now, and the hooks."""
        weights = self._module.state_dict() if self._is_module else {}
        named = self._module if hasattr(self._module, "__qualname__") else type(self._module)
        parameters = self._module.parameters() if self._is_module else ()
        return {
            "policy": "torch",
            "module": getattr(self._module, "original_name", named.__qualname__),
            "parameters": sum(parameter.numel() for parameter in parameters),
            "weights": weights_digest(weights),
            "batch_size": self._batch_size if self.row_independent else None,
            "hooks": [
                function_fingerprint(hook)["source"] for hook in (self._to_inputs, self._to_actions)
            ],
        }

    def begin(self, episodes: Sequence[EpisodeKey]) -> None:
        """These episodes begin; a module keeps nothing."""

    def act(self, batch: Batch) -> Array | PolicyOutput:
        """The module's actions, ``(B, K, …)`` or ``(B, …)``, as NumPy arrays of their own.

        Raises:
            PolicyError: The module returned another number of rows than it got, or does not treat
                rows alike as ``batch_invariant`` promises.
        """
        if self._is_module and self._module.training:
            self._module.eval()
        if self._untried:
            self._try_places(batch)
        decisions = [self._decide(part) for part in self._parts(batch)]
        actions = _joined([actions for actions, _ in decisions])
        names = decisions[0][1]
        extras = {name: _joined([found[name] for _, found in decisions]) for name in names}
        return PolicyOutput(actions, extras) if extras else actions

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        size = self._batch_size or len(batch)
        for start in range(0, len(batch), size):
            yield batch.rows(start, min(start + size, len(batch)))

    def _decide(self, part: Batch) -> Decision:
        """The decision on at most ``batch_size`` rows."""
        if not self.row_independent:
            return self._forward(part)
        padding = (self._batch_size or 0) - len(part)
        actions, extras = self._forward(_gathered(part, [*range(len(part)), *[0] * padding]))
        rows = slice(len(part))
        return actions[rows], {name: value[rows] for name, value in extras.items()}

    def _forward(self, batch: Batch) -> Decision:
        torch = _torch()
        with torch.inference_mode():
            # In memory of PyTorch's own: the kernels of some machines sum in another order
            # where an array starts at another offset, as rows of a shared block do.
            inputs = _tensors(self._to_inputs(batch), self.device, clone=self.row_independent)
            output = self._to_actions(self._module(inputs))
        extras: Mapping[str, Any] = {}
        if isinstance(output, PolicyOutput):
            output, extras = output.actions, output.extras
        elif isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], Mapping):
            output, extras = output
        arrays = {"actions": output, **{f"extra {name!r}": extras[name] for name in extras}}
        actions, *values = [_array(value, what, len(batch)) for what, value in arrays.items()]
        return actions, dict(zip(extras, values, strict=True))

    def _try_places(self, batch: Batch) -> None:
        """Raise unless rows get the same decision at every place and beside any other rows."""
        size = self._batch_size or 1
        count = min(size, len(batch))
        mixed = self._rehearse(batch, [*range(count), *[0] * (size - count)])
        tried = min(self._untried, count)
        for row in range(tried):
            alike = self._rehearse(batch, [row] * size)
            for place, name in product(range(size), alike):
                if alike[name][place].tobytes() != mixed[name][row].tobytes():
                    raise PolicyError(self._uneven(name, place), row=row)
        self._untried -= tried

    def _rehearse(self, batch: Batch, rows: Sequence[int]) -> dict[str, Array]:
        """What is returned for these rows; the noise drawn for it is not used up."""
        spare = tuple(copy.deepcopy(generator) for generator in batch.generators)
        actions, extras = self._forward(_gathered(replace(batch, generators=spare), rows))
        return {"actions": actions, **extras}

    def _uneven(self, name: str, place: int) -> str:
        fixes = ["another batch_size (multiples of 16 mostly do)", "batch_size=1"]
        if self.device.type == "cpu":
            fixes.append("MKL_CBWR=AVX2,STRICT in the environment, on a CPU of the x86 kind")
        return (
            f"batch_invariant=True, but one and the same row gets other {name} at place {place} of"
            f" batch_size={self._batch_size} rows than beside other rows. Either this machine sums"
            f" in an order that depends on the place; then try {', or '.join(fixes)}. Or rows"
            f" influence one another. Or the module draws noise of its own: draw it with"
            f" batch.noise() in to_inputs."
        )


def load_torchscript(path: Path) -> TorchPolicy:
    """The TorchScript module in a ``.pt`` file as a policy.

    Raises:
        PolicyError: There is no such file, or it holds something else.
    """
    torch = _torch()
    if not path.is_file():
        raise PolicyError(f"there is no file {path} in {Path.cwd()}")
    try:
        script = torch.jit.load(str(path), map_location="cpu")
    except RuntimeError as error:
        raise PolicyError(
            f"{path} is not a TorchScript module ({str(error).splitlines()[0]}). Weights alone need"
            f" a function that builds their module: '<module>:<function>@{path}'."
        ) from error
    return TorchPolicy(script)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtra(
            "TorchPolicy needs PyTorch: pip install 'polyarm[torch]', or see pytorch.org"
        ) from error
    return torch


def _observations(batch: Batch) -> Any:
    obs = batch.obs
    return obs["state"] if isinstance(obs, Mapping) and set(obs) == {"state"} else obs


def _tensors(value: Any, device: Any, *, clone: bool) -> Any:
    torch = _torch()
    if isinstance(value, Mapping):
        return {key: _tensors(child, device, clone=clone) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_tensors(child, device, clone=clone) for child in value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        array = np.ascontiguousarray(value)
        value = torch.from_numpy(array if array.flags.writeable else array.copy())
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device, copy=clone)


def use_gpu(index: int) -> None:
    """Make a GPU the current one of this thread: what moves to ``"cuda"`` goes there.

    Raises:
        InvalidCall: There is no such GPU.
        MissingExtra: PyTorch is not installed.
    """
    torch = _torch()
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        raise InvalidCall(f"there is no GPU {index} for PyTorch, which sees {count}")
    torch.cuda.set_device(index)


def _array(value: Any, what: str, rows: int) -> Array:
    array = np.array(to_host(value))
    if array.ndim == 0 or len(array) != rows:
        raise PolicyError(
            f"the module got {rows} rows, but its {what} have shape {array.shape}; the first"
            f" dimension must be {rows}"
        )
    return array


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _gathered(batch: Batch, rows: Sequence[int]) -> Batch:
    """The named rows, in new memory; a repeated row draws from a copy of its generator."""
    used: set[int] = set()
    generators = []
    for row in rows:
        own = batch.generators[row]
        generators.append(copy.deepcopy(own) if row in used else own)
        used.add(row)
    return Batch(
        map_leaves(lambda leaf: leaf[list(rows)], batch.obs),
        tuple(batch.keys[row] for row in rows),
        tuple(batch.instructions[row] for row in rows),
        batch.steps[list(rows)],
        tuple(generators),
    )


def weights_digest(weights: Mapping[str, Any]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes, in the order of the names."""
    torch = _torch()
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name]
        if not isinstance(value, torch.Tensor):
            digest.update(f"{name} {value!r}\n".encode())
            continue
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        # As bytes: NumPy has no bfloat16.
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()

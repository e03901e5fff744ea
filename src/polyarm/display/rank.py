"""Which of a host's ranks this process is, as its launcher says.

Standard library only: probes run outside the package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


RENDER_GPU = "POLYARM_RENDER_GPU"
"""Variable with CUDA's number of the GPU to render on, where that is not the one to compute on."""


def local_rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """Rank of this process on its host, by torchrun, SLURM or MPI; None where nobody says."""
    for variable in _LOCAL_RANK:
        if (value := environment.get(variable, "")).isdecimal():
            return int(value)
    return None


def cuda_index(environment: Mapping[str, str] = os.environ) -> int | None:
    """CUDA's number of the GPU that this rank renders on; None where nothing binds it to one.

    It is the one that it computes on, unless `RENDER_GPU` names another. Its number is among all
    GPUs of the host if ``CUDA_VISIBLE_DEVICES`` gives numbers, else its place in that variable.
    """
    if (chosen := environment.get(RENDER_GPU, "")).isdecimal():
        return int(chosen)
    rank = local_rank(environment)
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").strip()
    if not visible:
        return rank
    names = [name.strip() for name in visible.split(",")]
    place = (rank or 0) % len(names)
    return int(names[place]) if all(name.isdecimal() for name in names) else place

"""What scaling.py prints: rates, where the time goes, the fitted model and what it predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import measure
from chunk_costs import ChunkCosts, Engine
from host_model import HostModel, fit, least_squares

from polyarm.vector.host import cores

EPISODE_STEPS = 500
HOST_CORES = (16, 32, 64, 128)
NUM_ENVS = (64, 128, 256, 512, 1024)


def ladder() -> list[int]:
    """1, 2, 4 … cores."""
    most = cores()
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def episode_calls(chunk: int) -> int:
    """Calls per episode: of 500 steps in chunks of 8, 62 whole ones, one of 4 and one reset."""
    return -(-EPISODE_STEPS // chunk) + 1


STEPS_PER_CALL = EPISODE_STEPS / episode_calls(8)


def name(workers: int, num_envs: int) -> str:
    """The name of a vector env in tables and figures."""
    return f"{num_envs}_envs_{workers}_workers"


def physical_cores() -> int:
    """Cores apart from their hardware threads, as far as the machine shows."""
    found = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    return len({siblings.read_text() for siblings in found})


def headline(results: measure.Rounds, figures: dict[str, Any]) -> None:
    """The figures proper: one worker per core against one bare loop per core."""
    theirs, own, *ours = results
    found: dict[str, float] = {}
    for key in ours:
        figure = f"efficiency_{key.split('_')[0]}"
        found[figure] = measure.ratio(results, key, theirs)
        found[f"{figure}_own_env"] = measure.ratio(results, key, own)
    figures |= found
    figures["headline_env_steps_per_s"] = measure.medians(results)
    rows = [(key, f"{rate:,.0f} /s") for key, rate in measure.medians(results).items()]
    rows += [(key, f"{value:.3f}") for key, value in found.items()]
    measure.print_table(f"state, chunks of 8, {cores()} cores: env-steps/s", rows)


def where_time_goes(
    costs: Mapping[str, ChunkCosts], bare_cpu_s: float, figures: dict[str, Any]
) -> None:
    """Where the wall time of a chunk goes, in percent, and what a step costs the CPUs."""
    figures["cpu_us_per_step"] = {
        "bare": bare_cpu_s * 1e6,
        **{key: one.step_cpu_s * 1e6 for key, one in costs.items()},
    }
    figures["shares"] = {key: one.shares() for key, one in costs.items()}
    figures["parent_us"] = {key: one.parent_s * 1e6 for key, one in costs.items()}
    rows = []
    for key, one in costs.items():
        parts = "".join(f"{100 * share:9.1f}" for share in one.shares().values())
        rows.append((key, f"{one.wall_s * 1e3:8.2f}{one.parent_s * 1e6:8.0f}{parts}"))
    titles = "".join(f"{title:>9}" for title in ("sim", "frames", "obs", "other", "slowest"))
    measure.print_table(
        "where a chunk's wall time goes: ms, parent's µs, then % of the wall",
        [("", f"{'ms':>8}{'parent':>8}{titles}{'parent':>9}{'wake-up':>9}"), *rows],
    )
    rows = [(key, f"{cpu_us:.0f} µs") for key, cpu_us in figures["cpu_us_per_step"].items()]
    measure.print_table("CPU time per env step, of all processes", rows)


def sweep(
    results: measure.Rounds, costs: Mapping[str, ChunkCosts], figures: dict[str, Any]
) -> None:
    """From one worker to all cores, and what else there is."""
    most = cores()
    found: dict[str, float] = {}
    for key in results:
        if key.startswith("async"):
            ours = name(most, int(key.split("_")[1]))
            found[f"ratio_{key}"] = measure.ratio(results, ours, key)
        elif key not in costs and not key.startswith("bare"):
            found[f"efficiency_{key}"] = measure.ratio(results, key, f"bare_{most}")
    figures |= found
    print_rates(f"state, {most} cores: env-steps/s", results, costs)
    measure.print_table("figures", [(key, f"{value:.3f}") for key, value in found.items()])


def model(
    results: measure.Rounds,
    costs: Mapping[str, ChunkCosts],
    engines: Mapping[str, Engine],
    figures: dict[str, Any],
) -> None:
    """The model, what it costs to start and hold envs, and what larger hosts would do."""
    rates = measure.medians(results)
    step_s = {number: number / rates[f"bare_{number}"] for number in ladder()}
    fitted = fit(list(costs.values()), step_s)
    started = starts(engines)
    memory = linear(engines, [one["pss_mib"] for one in started.values()])
    start = linear(engines, [one["start_s"] for one in started.values()])
    print_model(fitted, memory, start, step_s)
    parts = ("fixed", "per_worker", "per_env")
    figures |= {
        "prediction_error": prediction_errors(rates, list(costs.values()), step_s),
        "model": asdict(fitted),
        "predicted": predict(fitted, memory, step_s[cores()]),
        "pss_mib": dict(zip(parts, memory, strict=True)),
        "start_s": dict(zip(parts, start, strict=True)),
        "started": started,
    }


def frames(
    results: measure.Rounds,
    costs: Mapping[str, ChunkCosts],
    engines: Mapping[str, Engine],
    figures: dict[str, Any],
) -> None:
    """The same with frames."""
    most = cores()
    started = starts(engines)
    figures["efficiency"] = measure.ratio(results, name(most, most), f"bare_{most}")
    figures["started"] = started
    print_rates(f"one 256×256 frame per chunk of 8, {most} cores: env-steps/s", results, costs)
    rows = [
        (key, "{start_s:6.2f} s{pss_mib:8.0f} MiB{gpu_mib:8.0f} MiB".format(**one))
        for key, one in started.items()
    ]
    measure.print_table("start, memory (PSS) and memory on GPUs", rows)


def print_rates(title: str, results: measure.Rounds, costs: Mapping[str, ChunkCosts]) -> None:
    """Rates, and beside ours the share of as many bare loops as workers."""
    rows = []
    for key, rate in measure.medians(results).items():
        share = ""
        if key in costs:
            share = f"  {measure.ratio(results, key, f'bare_{costs[key].workers}'):.3f} of bare"
        rows.append((key, f"{rate:10,.0f}{share:15}"))
    measure.print_table(title, rows)


def print_model(
    model: HostModel, memory: Sequence[float], start: Sequence[float], step_s: Mapping[int, float]
) -> None:
    fixed, per_worker, per_env = (1e6 * value for value in model.parent)
    waiting, spread = model.waiting
    measure.print_table(
        "model of a chunk (host_model.py)",
        [
            ("bare step, all cores busy", f"{1e6 * step_s[cores()]:.0f} µs"),
            ("bare step, one core busy", f"{1e6 * step_s[1]:.0f} µs"),
            ("worker's overhead", f"{100 * model.overhead:.1f} %"),
            ("parent", f"{fixed:.0f} + {per_worker:.1f}·workers + {per_env:.2f}·envs µs"),
            ("waiting", f"{1e6 * waiting:.0f} µs + {100 * spread:.1f} % of busy per deviation"),
            ("memory (PSS)", "{:.0f} + {:.1f}·workers + {:.1f}·envs MiB".format(*memory)),
            ("start", "{:.2f} + {:.4f}·workers + {:.4f}·envs s".format(*start)),
        ],
    )


def prediction_errors(
    rates: Mapping[str, float], costs: Sequence[ChunkCosts], step_s: Mapping[int, float]
) -> dict[str, float]:
    """How wrong the model is where it was not fitted: predicted over measured, less one."""
    most = cores()
    smaller = fit([one for one in costs if one.workers <= max(1, most // 2)], step_s)
    fewer = fit([one for one in costs if one.envs <= 4 * one.workers], step_s)
    errors = {}
    for one in costs:
        if one.workers == most:
            key = name(most, one.envs)
            predicted = smaller.rate(most, one.envs, step_s[most], STEPS_PER_CALL)
            errors[f"{key}_from_half_the_workers"] = predicted / rates[key] - 1
            if one.envs > 4 * most:
                predicted = fewer.rate(most, one.envs, step_s[most], STEPS_PER_CALL)
                errors[f"{key}_from_fewer_envs"] = predicted / rates[key] - 1
    rows = [(key, f"{100 * error:+.1f} %") for key, error in errors.items()]
    measure.print_table("error of predictions from smaller measurements", rows)
    return errors


def predict(
    model: HostModel, memory: Sequence[float], step_s: float
) -> dict[str, dict[str, float]]:
    """Rates of hosts with more cores of the kind measured here, one worker per core."""
    print(
        "predicted env-steps/s in lockstep (efficiency), assuming cores like these, all as busy,\n"
        "  one worker per core, a policy that takes no time, and memory bandwidth that grows along"
    )
    hosts = "".join(f"{f'{one} cores':>18}" for one in HOST_CORES)
    print(f"  {'envs':>6}{'memory (GiB)':>14}{hosts}")
    found: dict[str, dict[str, float]] = {}
    for envs in NUM_ENVS:
        cells, gib = "", []
        for host in HOST_CORES:
            workers = min(host, envs)
            gib.append((memory[0] + memory[1] * workers + memory[2] * envs) / 1024)
            rate = model.rate(workers, envs, step_s, STEPS_PER_CALL)
            efficiency = rate * step_s / host
            cells += f"{f'{rate:,.0f} ({efficiency:.2f})':>18}"
            found[f"{envs}_envs_{host}_cores"] = {"rate": rate, "efficiency": efficiency}
        print(f"  {envs:>6}{f'{gib[0]:.1f} to {gib[-1]:.1f}':>14}{cells}")
    return found


def linear(engines: Mapping[str, Engine], values: Sequence[float]) -> list[float]:
    """Fixed part, part per worker and part per env of something measured on all engines."""
    return least_squares(
        [(1.0, one.workers, one.envs.num_envs) for one in engines.values()], values
    )


def starts(engines: Mapping[str, Engine]) -> dict[str, dict[str, float]]:
    """What each engine took to start, and holds by now."""
    return {
        key: {
            "start_s": one.start_s,
            "pss_mib": one.pss_mib(),
            "gpu_mib": float(one.gpu_mib),
        }
        for key, one in engines.items()
    }

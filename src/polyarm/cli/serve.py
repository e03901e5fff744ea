"""``polyarm serve``: a policy behind a websocket, until a signal says that it is enough."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from polyarm.cli import console
from polyarm.errors import InvalidCall, StorageError
from polyarm.serving.options import ServeOptions

if TYPE_CHECKING:
    import gymnasium

    from polyarm.contracts import Policy
    from polyarm.serving.server import PolicyServer

API_KEY = "POLYARM_API_KEY"


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """Options of the server.

    Attributes:
        policy: As for eval: module:callable, module:callable@CHECKPOINT, a TorchScript file,
            lerobot:FOLDER, random, zero, replay:FILE.
        task: A task or set whose actions the policy makes; they are checked against its space.
        action_size: Numbers in an action, instead of a task.
        suite_options: Options of the suite as NAME=VALUE, such as control=absolute.
        chunk: Actions per decision of the built-in policies.
        gpus: GPUs by number, each of which gets a copy of the policy; clients are shared out among
            them. By default one copy, where the policy itself puts it.
        api_key_file: A file that holds the key clients must send; else $POLYARM_API_KEY, if set.
        server: Where and how it serves.
    """

    policy: str
    task: str | None = None
    action_size: int | None = None
    suite_options: tuple[str, ...] = ()
    chunk: int = 1
    gpus: tuple[int, ...] = ()
    api_key_file: Path | None = None
    server: tyro.conf.OmitArgPrefixes[ServeOptions] = field(default_factory=ServeOptions)


def run(command: ServeCommand) -> int:
    """Serve until a signal; returns the exit code."""
    from polyarm.policies.loading import load_policy
    from polyarm.serving.batching import Replica
    from polyarm.serving.replicas import on_gpus
    from polyarm.serving.server import PolicyServer, is_loopback

    errors = console.console(stderr=True)
    key, space = _api_key(command), _space(command)

    def load() -> Policy:
        return load_policy(command.policy, space, chunk=command.chunk)

    replicas = on_gpus(command.gpus, load) if command.gpus else [Replica(load())]
    policy = replicas[0].policy
    try:
        server = PolicyServer(
            policy,
            space,
            command.server,
            api_key=key,
            fingerprint=_fingerprint(command.policy, policy),
            replicas=replicas,
        )
        console.log_to(errors)
        if not key and not is_loopback(command.server.host):
            errors.print(
                f"anybody who reaches {command.server.host} can ask this policy: set {API_KEY}"
            )
        asyncio.run(_serve(server, command, errors))
    finally:
        for replica in replicas:
            if callable(close := getattr(replica.policy, "close", None)):
                close()
    return 0


async def _serve(server: PolicyServer, command: ServeCommand, errors: Any) -> None:
    stop, started = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def leave() -> None:
        loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C ends at once
        errors.print("stopping: no new clients, answering what was asked")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave)

    async def announce() -> None:
        await started.wait()
        errors.print(
            f"serving {command.policy} at {server.address} (/healthz, /metrics),"
            f" up to {command.server.max_batch} requests at once; Ctrl-C ends it",
            markup=False,
            soft_wrap=True,
        )

    announcing = asyncio.create_task(announce())
    try:
        await server.run(stop, started)
    finally:
        announcing.cancel()


def _api_key(command: ServeCommand) -> str:
    if command.api_key_file is None:
        return os.environ.get(API_KEY, "")
    try:
        key = command.api_key_file.read_text().strip()
    except OSError as error:
        raise StorageError(f"cannot read {command.api_key_file}: {error}") from error
    if not key:
        raise InvalidCall(f"{command.api_key_file} is empty; it must hold the API key")
    return key


def _space(command: ServeCommand) -> gymnasium.Space[Any]:
    """What the policy's actions must fit."""
    import numpy as np
    from gymnasium import spaces

    from polyarm import registry
    from polyarm.rollout.options import EvalOptions
    from polyarm.rollout.plan import group_tasks

    if command.action_size is not None:
        if command.action_size < 1:
            raise InvalidCall(f"action-size must be at least 1, found {command.action_size}")
        return spaces.Box(-np.inf, np.inf, (command.action_size,), np.float32)
    if command.task is None:
        raise InvalidCall("say whose actions the policy makes: --task TASK, or --action-size N")
    options = EvalOptions(task=command.task, suite_options=command.suite_options)
    spec = group_tasks(options.tasks, options)[0].specs[0]
    described = registry.load(spec.suite).describe(spec)
    if described is None:
        raise InvalidCall(
            f"the actions of {spec.name} are not known before it is built: give --action-size"
        )
    return described.action_space


def _fingerprint(name: str, policy: Any) -> dict[str, Any]:
    from polyarm.policies.fingerprints import files_digest, policy_fingerprint
    from polyarm.policies.loading import checkpoint_path, identity, source_digest

    about: dict[str, Any] = {"name": identity(name), "source": source_digest(name)}
    if (path := checkpoint_path(name)) is not None:
        return {**about, "checkpoint": files_digest(path)}
    return {**about, "policy": policy_fingerprint(policy)}

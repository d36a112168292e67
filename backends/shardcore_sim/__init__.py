"""The simulated cluster: several hosts in one process, a store each, every message counted.

This module is the plugin; the backend itself is in `shardcore_sim.backend`, loaded when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shardcore.backend import Capabilities
from shardcore.plugins import BackendSpec, CommandSpec, hookimpl

if TYPE_CHECKING:
    from shardcore_sim.backend import SimBackend
    from shardcore_sim.cost import CostModel
    from shardcore_sim.faults import Fault

__all__ = ["shardcore_backends", "shardcore_commands"]


@hookimpl
def shardcore_backends() -> Iterator[BackendSpec]:
    """Provide the backend ``"sim"``."""
    yield BackendSpec("sim", factory=_make, capabilities=Capabilities())


@hookimpl
def shardcore_commands() -> Iterator[CommandSpec]:
    """Provide the command ``shardcore simulate``."""
    yield CommandSpec(
        "simulate",
        "estimate a training step of a model on 1 to 4,096 hosts, without its tables",
        "shardcore_sim.simulate",
    )


def _make(
    hosts: int = 2,
    faults: Sequence[Fault] = (),
    cost: CostModel | None = None,
    retries: int = 3,
    timeout: float = 1e-3,
) -> SimBackend:
    from shardcore_sim.backend import SimBackend

    return SimBackend(hosts, faults, cost, retries, timeout)

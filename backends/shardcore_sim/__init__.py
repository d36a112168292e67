"""The simulated cluster: several hosts in one process, a store each, every message counted.

This module is the plugin; the backend itself is in `shardcore_sim.backend`, loaded when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shardcore.hookspecs import BackendSpec, hookimpl

if TYPE_CHECKING:
    from shardcore_sim.backend import SimBackend

__all__ = ["shardcore_backends"]


@hookimpl
def shardcore_backends() -> Iterator[BackendSpec]:
    """Provide the backend ``"sim"``."""
    yield BackendSpec("sim", factory=_make)


def _make(hosts: int = 2) -> SimBackend:
    from shardcore_sim.backend import SimBackend

    return SimBackend(hosts=hosts)

"""The embedded backend, the default: one store, all cores, in this process.

This module is the plugin; the backend itself is in `shardcore_cpu.backend`, loaded when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shardcore.backend import Capabilities
from shardcore.plugins import BackendSpec, hookimpl

if TYPE_CHECKING:
    from shardcore_cpu.backend import CpuBackend

__all__ = ["shardcore_backends"]


@hookimpl
def shardcore_backends() -> Iterator[BackendSpec]:
    """Provide the backend ``"cpu"``."""
    yield BackendSpec("cpu", factory=_make, capabilities=Capabilities())


def _make() -> CpuBackend:
    from shardcore_cpu.backend import CpuBackend

    return CpuBackend()

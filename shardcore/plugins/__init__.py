"""How backends, optimizers and commands arrive: entry points, hooks and the registry.

::

    hookspecs   the hooks, and the records that a plugin yields
    registry    what the installed plugins provide, found when asked for
"""

from __future__ import annotations

from shardcore.plugins.hookspecs import BackendSpec, CommandSpec, OptimizerSpec, hookimpl
from shardcore.plugins.registry import BackendInfo, backends, get_backend, get_optimizer

__all__ = [
    "BackendSpec",
    "CommandSpec",
    "OptimizerSpec",
    "hookimpl",
    "BackendInfo",
    "backends",
    "get_backend",
    "get_optimizer",
]

"""The output of ``shardcore info``: versions, processor, threads, backends and plugins."""

from __future__ import annotations

import platform

import numpy as np

import shardcore
from shardcore._core import cpu
from shardcore.plugins import registry
from shardcore.store import instruction_set
from shardcore.threads import team

__all__ = ["describe", "describe_machine"]


def describe() -> list[str]:
    """Return the lines that ``shardcore info`` prints.

    Examples
    --------
    >>> [line.split()[0] for line in describe()[:4]]
    ['shardcore', 'Python', 'NumPy', 'platform']
    """
    lines = [*describe_machine(), "backends"]
    for name, backend in registry.backends().items():
        state = "available" if backend.available else f"unavailable: {backend.reason}"
        lines.append(f"  {name}: {state} (from {backend.provider})")
        if backend.available and backend.capabilities is not None:
            lines.append(f"    {backend.capabilities.described()}")
    lines.append("plugins")
    lines += [f"  {plugin}" for plugin in registry.plugins()]
    return lines


def describe_machine() -> list[str]:
    """Return those of the lines that a measurement depends on.

    Examples
    --------
    >>> [line.split()[0] for line in describe_machine()[4:]]
    ['CPU', 'kernels', 'threads']
    """
    features = sorted(name for name, present in cpu.features().items() if present)
    return [
        f"shardcore      {shardcore.__version__}",
        f"Python         {platform.python_version()} ({platform.python_implementation()})",
        f"NumPy          {np.__version__}",
        f"platform       {platform.platform()}",
        f"CPU features   {', '.join(features) or 'none that matter here'}",
        f"kernels        {instruction_set.NAME}: {instruction_set.REASON}",
        f"threads        {team.get_num_threads()}",
    ]

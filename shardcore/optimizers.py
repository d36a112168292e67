"""The door to every optimizer: ``shardcore.optimizers.SGD`` and whatever else plugins provide.

The names are those of the plugins' `OptimizerSpec` records; they are looked up when asked for, so
that importing this module loads no plugin. ``dir(shardcore.optimizers)`` lists them.

Examples
--------
>>> from shardcore import optimizers
>>> optimizers.SGD(learning_rate=0.1)
SGD(learning_rate=0.1)
>>> hasattr(optimizers, "Abacus")
False
"""

from __future__ import annotations

from typing import Any

from shardcore.errors import UnknownPluginError
from shardcore.plugins import registry


class UnknownOptimizerError(UnknownPluginError, AttributeError):
    """No plugin provides the optimizer asked for; an AttributeError, so that `hasattr` works."""


def __getattr__(name: str) -> Any:
    if name.startswith("_"):  # what inspect, copy and the import system ask of any module
        raise UnknownOptimizerError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return registry.get_optimizer(name)
    except UnknownPluginError as error:
        raise UnknownOptimizerError(str(error)) from None


def __dir__() -> list[str]:
    return sorted([*registry.optimizers(), UnknownOptimizerError.__name__])

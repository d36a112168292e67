"""Every error shardcore raises.

Each is a `ShardcoreError` and also the built-in it resembles, so that ``except ValueError`` in
other code still works. None is a `KeyError`, whose text Python shows quoted.

A message names the argument, the rule, the value and its position, and is raised before anything
is changed.
"""

from __future__ import annotations

import re

__all__ = [
    "ShardcoreError",
    "ShardcoreValueError",
    "ShardcoreTypeError",
    "ShardcoreIndexError",
    "ShardcoreRuntimeError",
    "ShardcoreMemoryError",
    "ShardcoreOSError",
    "CorruptCheckpointError",
    "NotCommittedError",
    "DurabilityUnknownError",
    "UpdateRefusedError",
    "UnknownPluginError",
    "BrokenPluginError",
    "UnavailableError",
    "PluginConflictError",
    "shown",
]

_DEEP = re.compile(r"[\[({]{65}|[\])}]{65}")


class ShardcoreError(Exception):
    """Base of every error raised on purpose by shardcore."""


class ShardcoreValueError(ShardcoreError, ValueError):
    """An argument of the right type has a value that breaks a rule."""


class ShardcoreTypeError(ShardcoreError, TypeError):
    """An argument has a type or dtype that is not accepted."""


class ShardcoreIndexError(ShardcoreError, IndexError):
    """An id, row or index lies outside its table."""


class ShardcoreRuntimeError(ShardcoreError, RuntimeError):
    """A call came in the wrong order or state."""


class ShardcoreMemoryError(ShardcoreError, MemoryError):
    """The system has no room for a table, or for another array that was asked for."""


class ShardcoreOSError(ShardcoreError, OSError):
    """Storage failed or holds something else than promised."""


class CorruptCheckpointError(ShardcoreOSError):
    """A checkpoint's bytes or manifest are not what was written."""


class NotCommittedError(ShardcoreOSError):
    """A save failed before its commit: the checkpoint does not exist, older ones are intact."""


class DurabilityUnknownError(ShardcoreOSError):
    """A save was committed and is visible, but the disk did not confirm that it will stay so."""


class UpdateRefusedError(ShardcoreValueError):
    """A gradient on a device, tested there, was not finite: its update did nothing."""


class UnknownPluginError(ShardcoreValueError):
    """No plugin provides a backend or optimizer of the name asked for."""


class BrokenPluginError(ShardcoreRuntimeError):
    """A plugin that provides the name asked for could not be loaded."""


class UnavailableError(ShardcoreRuntimeError):
    """A backend or optional package is known but cannot be used on this machine."""


class PluginConflictError(ShardcoreRuntimeError):
    """Two plugins provide the same name."""


def shown(value: object) -> str:
    """Return ``repr(value)`` for a message, or the type where that cannot be had or is no help.

    Lists nested thousands deep have none before Python 3.12, and thousands of brackets after it; a
    class may raise in its own.

    Examples
    --------
    >>> nested = []
    >>> for _ in range(100_000):
    ...     nested = [nested]
    >>> shown(nested), shown([3])
    ('<list>', '[3]')
    """
    try:
        text = repr(value)
        if not _DEEP.search(text):
            return text
    except Exception:  # the message that is being written matters more
        pass
    return f"<{type(value).__name__}>"

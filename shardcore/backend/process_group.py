"""Several processes that hold tables together, as a checkpoint sees them.

Every process of the program makes the same calls in the same order, and has a part of each table.
All of them take part in every read and write; one writes the files of a checkpoint. A backend of
one process has nothing to do with this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

__all__ = ["Part", "Read", "ProcessGroup"]

Read: TypeAlias = Callable[[tuple[int, ...]], NDArray[Any]]
"""Returns some values, chosen by a few integers; in all processes, the same."""

Part: TypeAlias = tuple[str, Any]
"""A value that must be the same in all processes, after its name: bytes, str or an array."""


class ProcessGroup(Protocol):
    """Processes that hold tables together; one object per process, for all that it holds so."""

    def agree(self, call: str, parts: Iterable[Part]) -> None:
        """Raise, in every process, unless all make this call with the same parts."""

    def save(
        self,
        parts: Iterable[Part],
        reads: Mapping[str, Read],
        write: Callable[[Mapping[str, Read]], None],
    ) -> None:
        """Let one process write what all of them read.

        It calls `write`, with reads by the same names in which all processes take part. The others
        return when it has, or raise what it raised.

        Parameters
        ----------
        parts : iterable of (str, bytes, str or ndarray)
            Values that must be the same in all processes.
        reads : mapping of str to callable
        write : callable
        """

    def restoring(self) -> AbstractContextManager[None]:
        """Return a context in which each process reads a checkpoint; all leave it well, or none."""

"""What an engine counts of its calls, from any thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardcore.store.lock import Mutex

__all__ = ["Counters"]

_FROM_THE_START: Final = (
    "lookups",
    "ids",
    "invalid_ids",
    "messages_exchanged",
    "bytes_exchanged",
)


class Counters:
    """Numbers by name, which several threads add to.

    Examples
    --------
    >>> counters = Counters()
    >>> counters.add(lookups=1, ids=7)
    >>> counters.read()["ids"]
    7
    """

    def __init__(self) -> None:
        self._lock = Mutex()
        self._counted = dict.fromkeys(_FROM_THE_START, 0)

    def add(self, **counted: int) -> None:
        """Add to numbers, new names included."""
        self._lock.run(self._add, counted)

    def _add(self, counted: Mapping[str, int]) -> None:
        for name, count in counted.items():
            self._counted[name] = self._counted.get(name, 0) + count

    def read(self) -> dict[str, int]:
        """Return all numbers, as they were at one time."""
        return self._lock.run(dict, self._counted)

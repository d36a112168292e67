"""What an engine counts of its calls, from any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from shardcore.threads.lock import Mutex
from shardcore.threads.tally import Tally

__all__ = ["Counters"]

_OF_LOOKUPS: Final = ("lookups", "ids", "invalid_ids")
_FROM_THE_START: Final = (*_OF_LOOKUPS, "messages_exchanged", "bytes_exchanged")


class Counters:
    """Numbers by name, which several threads add to.

    Attributes
    ----------
    count_lookup : callable
        ``count_lookup(ids, invalid_ids)`` adds a lookup of so many ids.

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
        # Apart, and compiled: a small lookup takes a few times as long as to count it.
        self._lookups = Tally(len(_OF_LOOKUPS))
        self.count_lookup: Callable[[int, int], None] = partial(self._lookups.add, 1)

    def add(self, **counted: int) -> None:
        """Add to numbers, new names included."""
        self._lock.run(self._add, counted)

    def _add(self, counted: Mapping[str, int]) -> None:
        for name, count in counted.items():
            self._counted[name] = self._counted.get(name, 0) + count

    def read(self) -> dict[str, int]:
        """Return all numbers, as they were at one time."""
        counted: dict[str, int] = self._lock.run(dict, self._counted)
        for name, count in zip(_OF_LOOKUPS, self._lookups.read(), strict=True):
            counted[name] += count
        return counted

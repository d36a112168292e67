"""The least that a third party writes of a backend; everything else is the base class's.

In a folder of its own, which pytest puts on the path: tests of several folders import it.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from shardcore.backend import initial_arrays
from shardcore.backend.base import Backend


class Dictionary(Backend):
    """Tables in a dictionary, by the four methods that a backend must have."""

    name = "dictionary"

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[str, Any] = {}

    def make_table(self, spec: Any) -> None:
        self.arrays[spec.name] = initial_arrays(spec)

    def remove_table(self, table: str) -> None:
        self.arrays.pop(table, None)

    def gather(self, table: str, slot: str | None, rows: Any) -> NDArray[Any]:
        gathered: NDArray[Any] = self.arrays[table][slot][rows]
        return gathered

    def scatter(self, table: str, slot: str | None, rows: Any, values: Any) -> None:
        self.arrays[table][slot][rows] = values

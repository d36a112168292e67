"""Which SparseCore holds which row: of one table, or of several that are stacked into one array.

A table's layout says which device a row is on, and its local row there; of the c cores of a device
core ``local % c`` holds it. With the layout "mod" successive rows are so on different devices, then
on different cores of them.

Members of a stack follow one another, and an id becomes the stack's in one pass, as it does in the
stacks of `shardcore_pjrt.stacks`: its number is where its device begins, plus the table's first row
there, plus its local row. All are counted over the device; a number in bits is so (device, row of
the core, core), which is what `shardcore.store.sort_triples` takes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreValueError
from shardcore.sharding import Layout

__all__ = ["LANES", "MOST_ROWS", "StackGeometry", "rounded_up"]

LANES: Final = 128
"""Columns of the lines in which the host reads and writes."""

MOST_ROWS: Final = 2**31 - 1
"""A core has fewer: the number itself pads lists of rows."""

_TILE: Final = 8


def rounded_up(n: int, step: int = _TILE) -> int:
    """Return the least multiple of `step` that is at least `n`.

    Examples
    --------
    >>> [rounded_up(n) for n in (0, 1, 8, 9)]
    [0, 8, 8, 16]
    """
    return -(-n // step) * step


@dataclass(frozen=True)
class StackGeometry:
    """The rows of a stack of tables, over the cores of all devices.

    Parameters
    ----------
    layouts : tuple of Layout
        Of each table, over the devices.
    cores : int
        Of each device: a power of two.
    dim : int
        Columns of the widest table.

    Attributes
    ----------
    columns : int
        Of the array: `dim`, rounded up to 8.
    first_rows : tuple of int
        Of each table, in every core.
    rows_per_core : int

    Raises
    ------
    ShardcoreValueError
        If the cores are no power of two, or one would hold 2**31 - 1 rows or more.

    Examples
    --------
    >>> stack = StackGeometry((Layout.mod(50, 2), Layout.mod(9, 2)), cores=2, dim=3)
    >>> stack.columns, stack.first_rows, stack.rows_per_core
    (8, (0, 16), 24)
    >>> stack.place(1, np.array([0, 1, 2, 3, 4]))
    (array([0, 2, 1, 3, 0]), array([16, 16, 16, 16, 17]))
    """

    layouts: tuple[Layout, ...]
    cores: int
    dim: int

    def __post_init__(self) -> None:
        if self.cores < 1 or self.cores & (self.cores - 1):
            raise ShardcoreValueError(
                f"the SparseCores of a device must be a power of two, got {self.cores}"
            )
        if self.rows_per_core >= MOST_ROWS:
            raise ShardcoreValueError(
                f"a SparseCore must hold fewer than {MOST_ROWS} rows, got {self.rows_per_core}"
            )

    @property
    def devices(self) -> int:
        """How many devices the rows are on."""
        return self.layouts[0].num_shards

    @property
    def all_cores(self) -> int:
        """The cores of all devices."""
        return self.devices * self.cores

    @property
    def columns(self) -> int:
        """Columns of the array."""
        return rounded_up(self.dim)

    @cached_property
    def _borders(self) -> tuple[int, ...]:
        """The first row of each table in a core, and the end."""
        rows = [
            rounded_up(-(-int(layout.shard_sizes.max()) // self.cores)) for layout in self.layouts
        ]
        return tuple(itertools.accumulate(rows, initial=0))

    @property
    def first_rows(self) -> tuple[int, ...]:
        """The first row of each table, in every core."""
        return self._borders[:-1]

    @property
    def rows_per_core(self) -> int:
        """Rows of a core, padding included; at least 8."""
        return max(_TILE, self._borders[-1])

    @property
    def rows_per_device(self) -> int:
        """Rows of a device, padding included."""
        return self.cores * self.rows_per_core

    @property
    def shape(self) -> tuple[int, int]:
        """The array's shape, over all devices."""
        return self.devices * self.rows_per_device, self.columns

    @property
    def lines_per_device(self) -> int:
        """Lines of 128 columns that a device's rows fill, one after the other."""
        return -(-self.rows_per_device * self.columns // LANES)

    @property
    def core_bits(self) -> int:
        """Bits of a number that say which core of its device holds the row: the last ones."""
        return self.cores.bit_length() - 1

    @property
    def row_bits(self) -> int:
        """Bits of a number before these, that say which row of the core it is."""
        return (self.rows_per_core - 1).bit_length()

    @cached_property
    def first_numbers(self) -> NDArray[np.int64]:
        """The number of the first row of each table on each device, (tables, devices)."""
        of_device = np.arange(self.devices) << (self.row_bits + self.core_bits)
        return of_device + np.array(self.first_rows, np.int64)[:, None] * self.cores

    def numbers(self, table: int, rows: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stack's numbers of rows of a table.

        Parameters
        ----------
        table : int
            Its place among the layouts.
        rows : ndarray of int32 or int64, shape (n,)
            In range.

        Examples
        --------
        >>> stack = StackGeometry((Layout.mod(50, 2), Layout.mod(9, 2)), cores=2, dim=3)
        >>> stack.core_bits, stack.row_bits, stack.numbers(1, np.array([0, 1, 2]))
        (1, 5, array([32, 96, 33]))
        """
        return self.layouts[table].addresses(rows, self.first_numbers[table], 1)

    def place(
        self, table: int, rows: NDArray[np.int32] | NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the core of each row of a table, numbered over all devices, and its row there.

        Parameters
        ----------
        table : int
            Its place among the layouts.
        rows : ndarray of int32 or int64, shape (n,)
            In range.
        """
        numbers = self.numbers(table, rows)
        device = numbers >> (self.row_bits + self.core_bits)
        row = numbers >> self.core_bits & (1 << self.row_bits) - 1
        return device * self.cores + (numbers & self.cores - 1), row

    def on_device(
        self, cores: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the device of rows of cores, and where they lie in its part of the array.

        Examples
        --------
        >>> stack = StackGeometry((Layout.mod(50, 2),), cores=2, dim=3)
        >>> stack.on_device(np.array([3]), np.array([5]))
        (array([1]), array([21]))
        """
        device, core = np.divmod(cores, self.cores)
        return device, core * self.rows_per_core + rows

"""How a table lies on the devices of a mesh: which device holds which rows and columns, and where.

The part of a table on one device is a shard. Its rows are *packed*: `rows_per_line` rows of `width`
columns make one line. Local row r is at line ``r // rows_per_line``, place ``r % rows_per_line``. A
TPU's memory has lines of 128 lanes; narrower rows, left alone, would be stored padded to 128
columns, or the whole table would be copied in every step. Elsewhere a line is a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, get_args

from shardcore.errors import ShardcoreValueError
from shardcore.sharding import Layout
from shardcore.validation import as_count

__all__ = ["Geometry", "Placement"]

Placement = Literal["row", "table", "column", "replicated"]
LayoutName = Literal["div", "mod"]

MAX_ROWS: Final = 2**31 - 1
MAX_LOCAL_ROWS: Final = 2**31 - 2**27
"""Local rows are int32 on the devices, and so are the out-of-range numbers that pad lists of them:
the room for these."""


@dataclass(frozen=True)
class Geometry:
    """The placement of one table over the devices of a one-axis mesh.

    Parameters
    ----------
    num_rows, dim : int
        Of the whole table.
    devices : int
        Of the mesh. A table placed "table" has a mesh of its own with one device.
    placement : {"row", "table", "column", "replicated"}
        Rows cut over the devices; all on one device; columns cut over the devices; all on each.
    lanes : int
        Columns of a line that the device's memory favours: 128 on a TPU, else 1.
    layout_name : {"div", "mod"} or tuple of int
        How "row" cuts: see `shardcore.sharding.layout`; or the row count of each device, which
        all give room for the largest.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is no count or no such word, if "table" has more than one device, or if row
        numbers do not fit the devices' int32.

    Examples
    --------
    >>> table = Geometry(num_rows=1000, dim=20, devices=4, placement="row", lanes=128)
    >>> table.width, table.rows_per_line, table.lines, table.table_shape
    (32, 4, 63, (252, 128))
    >>> Geometry(1000, 20, 4, "column").table_shape
    (1000, 20)
    """

    num_rows: int
    dim: int
    devices: int
    placement: Placement
    lanes: int = 1
    layout_name: LayoutName | Sequence[int] = "div"

    def __post_init__(self) -> None:
        as_count(self.num_rows, "num_rows", 0)
        as_count(self.dim, "dim")
        as_count(self.devices, "devices")
        as_count(self.lanes, "lanes")
        for argument, words in (("placement", Placement), ("layout_name", LayoutName)):
            value = getattr(self, argument)
            counts = argument == "layout_name" and isinstance(value, tuple)
            if value not in get_args(words) and not counts:
                raise ShardcoreValueError(
                    f"{argument} must be one of {', '.join(get_args(words))}, got {value!r}"
                )
        if self.placement == "table" and self.devices != 1:
            raise ShardcoreValueError(
                f"devices must be 1 for placement 'table', got {self.devices}"
            )
        if self.num_rows > MAX_ROWS:
            raise ShardcoreValueError(
                f"num_rows must be at most {MAX_ROWS}: devices number rows in int32, "
                f"got {self.num_rows}"
            )
        if self.local_rows > MAX_LOCAL_ROWS:
            raise ShardcoreValueError(
                f"a device must hold at most {MAX_LOCAL_ROWS} rows, got {self.local_rows}: "
                f"num_rows = {self.num_rows} over {self.layout.num_shards} shards, "
                f"{self.rows_per_line} to a line"
            )

    @cached_property
    def layout(self) -> Layout:
        """Which shard holds which row. One shard, unless rows are cut."""
        if self.placement != "row":
            return Layout.div(self.num_rows, 1)
        return Layout.of(self.layout_name, self.num_rows, self.devices)

    @cached_property
    def columns(self) -> int:
        """Columns of a row that one device holds; the last device's may be padding in part."""
        return -(-self.dim // self.devices) if self.placement == "column" else self.dim

    @cached_property
    def width(self) -> int:
        """Columns with padding: a divisor of the lanes, or a multiple of them."""
        lanes, columns = self.lanes, self.columns
        if columns > lanes:
            return -(-columns // lanes) * lanes
        return next(width for width in range(columns, lanes + 1) if lanes % width == 0)

    @cached_property
    def rows_per_line(self) -> int:
        """Rows that lie side by side in one line."""
        return max(1, self.lanes // self.width)

    @cached_property
    def line_width(self) -> int:
        """Columns of a line."""
        return self.rows_per_line * self.width

    @cached_property
    def lines(self) -> int:
        """Lines of every shard: enough for the largest, at least one."""
        return max(1, -(-int(self.layout.shard_sizes.max()) // self.rows_per_line))

    @cached_property
    def local_rows(self) -> int:
        """Rows of every shard, padding included."""
        return self.lines * self.rows_per_line

    @cached_property
    def table_shape(self) -> tuple[int, int]:
        """Shape of the table, and of its element slots, over all devices that cut it."""
        if self.placement == "row":
            return self.devices * self.lines, self.line_width
        if self.placement == "column":
            return self.lines, self.devices * self.line_width
        return self.lines, self.line_width

    @cached_property
    def row_slot_shape(self) -> tuple[int]:
        """Shape of a slot with one number per row, over all devices that cut it."""
        shards = self.devices if self.placement == "row" else 1
        return (shards * self.local_rows,)

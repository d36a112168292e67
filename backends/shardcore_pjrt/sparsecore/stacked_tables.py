"""Which tables lie in one stack of SparseCores; none of it needs a device.

Tables are alike if they have as many columns, once rounded up, and updates of one kind: one call of
a program serves them. Rows, initial values and the numbers of their optimizers may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardcore.backend import TableSpec
from shardcore.errors import ShardcoreValueError
from shardcore.sharding import Layout
from shardcore_pjrt.sparsecore.stack_geometry import MOST_ROWS, StackGeometry
from shardcore_pjrt.sparsecore.updates import RowUpdate, row_update

__all__ = ["StackedTables", "stacked"]


class StackedTables(NamedTuple):
    """Tables that lie together, before there are arrays of them.

    Attributes
    ----------
    geometry : StackGeometry
    specs : tuple of TableSpec
        In the order of the geometry's layouts; at least one.
    rule : RowUpdate or None
        Of all of them; None: tables without an optimizer.
    """

    geometry: StackGeometry
    specs: tuple[TableSpec, ...]
    rule: RowUpdate | None


def stacked(specs: Sequence[TableSpec], devices: int, cores: int) -> list[StackedTables]:
    """Return tables as stacks: those that are alike together, as far as a core has room for rows.

    Parameters
    ----------
    specs : sequence of TableSpec
    devices : int
    cores : int
        Of each device.

    Returns
    -------
    list of StackedTables
        In the order of their first tables.

    Raises
    ------
    ShardcoreValueError
        If SparseCores have no such optimizer, or a core would hold 2**31 - 1 rows or more of one
        table.

    Examples
    --------
    >>> import numpy as np
    >>> from shardcore.initializers import Zeros
    >>> a, b, c = (
    ...     TableSpec(name, 50, dim, np.dtype("float32"), Zeros(), 0)
    ...     for name, dim in [("a", 8), ("b", 16), ("c", 5)]
    ... )
    >>> [[spec.name for spec in stack.specs] for stack in stacked([a, b, c], devices=2, cores=2)]
    [['a', 'c'], ['b']]
    """
    groups: list[list[tuple[StackGeometry, TableSpec]]] = []
    rules: list[RowUpdate | None] = []
    last: dict[tuple[int, RowUpdate | None], int] = {}  # of each kind
    rows: list[int] = []
    for spec in specs:
        rule = None if spec.optimizer is None else row_update(spec)
        layout = Layout.of(spec.layout, spec.num_rows, devices)
        try:
            alone = StackGeometry((layout,), cores, spec.dim)
        except ShardcoreValueError as error:
            raise ShardcoreValueError(f"table {spec.name!r}: {error}") from error
        at = last.get((alone.columns, rule))
        if at is None or rows[at] + alone.rows_per_core >= MOST_ROWS:
            at = last[alone.columns, rule] = len(groups)
            groups.append([])
            rules.append(rule)
            rows.append(0)
        groups[at].append((alone, spec))
        rows[at] += alone.rows_per_core
    return [_stack(group, rule) for group, rule in zip(groups, rules, strict=True)]


def _stack(
    group: Sequence[tuple[StackGeometry, TableSpec]], rule: RowUpdate | None
) -> StackedTables:
    layouts = tuple(layout for alone, _ in group for layout in alone.layouts)
    dim = max(alone.dim for alone, _ in group)
    geometry = StackGeometry(layouts, group[0][0].cores, dim)
    return StackedTables(geometry, tuple(spec for _, spec in group), rule)

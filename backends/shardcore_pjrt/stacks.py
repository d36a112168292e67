"""Tables that are alike lie in one: a *stack*, which programs see as a single larger table.

A batch then takes one lookup, one update and one transfer per stack, not per table. Every shard of
a stack holds the rows that this shard holds of the first member, then those of the second, ...: a
member's local row r of shard s is the stack's local row ``start[s] + r``. Shards are padded to the
longest, L rows, so that the stack is cut like any "div" table of ``shards * L`` rows, whatever the
layouts of its members. An id becomes the stack's in one pass, and nothing after it knows members.

Tables are alike if programs cannot tell them apart: rows of one width and dtype, of one optimizer,
placed alike, seen alike by lookups, with constants of the same value or none to begin with. Alone
stay tables that an update changes in every row (no gradient for a member must leave it as it is),
and those that it rounds by chance, whose seed is the table's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import FeatureBags, TableSpec
from shardcore.initializers import Constant, Zeros
from shardcore.optimizer import constant_of
from shardcore.sharding import Layout
from shardcore.store import rounds_stochastically
from shardcore_pjrt.mesh.geometry import MAX_LOCAL_ROWS, MAX_ROWS, Geometry
from shardcore_pjrt.routing.update_route import UpdateRoute

__all__ = ["Member", "Numbering", "Stack", "initial_constants", "numbered", "stacked"]

Where = TypeVar("Where", bound=Hashable)
"""The devices that hold a table: a mesh, or, in a plan, a number."""


@dataclass(frozen=True, eq=False)
class Member:
    """A table of a stack, and which of the stack's rows are its own.

    Attributes
    ----------
    spec : TableSpec
    layout : Layout
        Of the table itself.
    start : ndarray of int64, shape (shards,)
        The stack's local row that is the table's first, per shard.
    first : ndarray of int64, shape (shards,), or None
        The same as the stack's own rows, of all shards. None: the stack has no other member, and
        its rows are the table's.
    """

    spec: TableSpec
    layout: Layout
    start: NDArray[np.int64]
    first: NDArray[np.int64] | None

    def rows(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Return the stack's rows that rows of the table are.

        Parameters
        ----------
        ids : ndarray of int32 or int64, shape (n,), in range

        Examples
        --------
        >>> a, b = (TableSpec(n, 5, 2, np.dtype("f4"), Zeros(), 0, layout="mod") for n in "ab")
        >>> where = Geometry(5, 2, 2, "row", layout_name="mod")
        >>> (stack,) = stacked([(a, where, "mesh"), (b, where, "mesh")])
        >>> stack.geometry.num_rows, stack.members[1].rows(np.array([0, 1, 4]))
        (12, array([3, 8, 5]))
        """
        if self.first is None:
            return ids
        if self.first.size == 1:  # of int32, if the ids are
            shifted: NDArray[Any] = ids + ids.dtype.type(self.first[0])
            return shifted
        return self.layout.addresses(ids, self.first, 1)

    def bags(self, features: Iterable[FeatureBags]) -> list[FeatureBags]:
        """Return bags over the table as bags over the stack."""
        if self.first is None:
            return list(features)
        return [dataclasses.replace(bags, ids=self.rows(bags.ids)) for bags in features]


class Stack(NamedTuple, Generic[Where]):
    """Tables that lie together, before there are arrays of them.

    Attributes
    ----------
    where : hashable
        On which devices: what `stacked` was given.
    geometry : Geometry
    members : tuple of Member
        At least one.
    """

    where: Where
    geometry: Geometry
    members: tuple[Member, ...]


def stacked(tables: Sequence[tuple[TableSpec, Geometry, Where]]) -> list[Stack[Where]]:
    """Return tables as stacks: those that are alike together, as far as int32 can number the rows.

    Parameters
    ----------
    tables : sequence of (TableSpec, Geometry, hashable)
        Each as it would lie alone, and on which devices: their mesh, or what stands for it.

    Returns
    -------
    list of Stack
        In the order of their first members.
    """
    open_stacks: dict[Hashable, list[tuple[TableSpec, Geometry]]] = {}
    room: dict[Hashable, NDArray[np.int64]] = {}
    groups: list[tuple[Where, list[tuple[TableSpec, Geometry]]]] = []
    for spec, geometry, where in tables:
        kind = _kind(spec, geometry, where)
        sizes = geometry.layout.shard_sizes
        group = open_stacks.get(kind)
        if kind is None or group is None or not _fits(geometry, room[kind] + sizes):
            group = []
            groups.append((where, group))
            room[kind], open_stacks[kind] = np.zeros_like(sizes), group
        group.append((spec, geometry))
        room[kind] = room[kind] + sizes
    return [_stack(where, group) for where, group in groups]


def _kind(spec: TableSpec, geometry: Geometry, where: Hashable) -> Hashable:
    """Return what tables of one stack have in common; None for one that stays alone."""
    optimizer = spec.optimizer
    if optimizer is not None and (
        not optimizer.lazy or rounds_stochastically(optimizer, spec.dtype)
    ):
        return None
    return (
        where,
        (geometry.dim, geometry.devices, geometry.placement, geometry.lanes),
        (spec.dtype, optimizer, spec.exchange, spec.quantization, spec.max_norm),
        *(  # by their bits: 0.0 is equal to -0.0
            (name, None if constant is None else np.float64(constant).tobytes())
            for name, constant in initial_constants(spec).items()
        ),
    )


def _fits(geometry: Geometry, sizes: NDArray[np.int64]) -> bool:
    longest = int(sizes.max())
    lines = -(-longest // geometry.rows_per_line)
    return sizes.size * longest <= MAX_ROWS and lines * geometry.rows_per_line <= MAX_LOCAL_ROWS


def _stack(where: Where, group: Sequence[tuple[TableSpec, Geometry]]) -> Stack[Where]:
    ((first, alone), *others) = group
    layouts = [geometry.layout for _, geometry in group]
    if not others:
        member = Member(first, layouts[0], np.zeros_like(layouts[0].shard_sizes), None)
        return Stack(where, alone, (member,))
    ends = np.cumsum([layout.shard_sizes for layout in layouts], axis=0)
    longest = int(ends[-1].max())
    shards = ends.shape[1]
    geometry = dataclasses.replace(alone, num_rows=shards * longest, layout_name="div")
    members = []
    for (spec, _), layout, end in zip(group, layouts, ends, strict=True):
        start = end - layout.shard_sizes
        members.append(Member(spec, layout, start, np.arange(shards) * longest + start))
    return Stack(where, geometry, tuple(members))


def initial_constants(spec: TableSpec) -> dict[str | None, float | None]:
    """Return the constant that the weights (None) and each slot start from; None: values differ."""
    constants: dict[str | None, float | None] = {None: None}
    if type(spec.initializer) is Zeros:
        constants[None] = 0.0
    elif type(spec.initializer) is Constant:
        constants[None] = float(spec.initializer.value)
    if spec.optimizer is not None:
        for slot in spec.optimizer.slots:
            constants[slot.name] = constant_of(spec.optimizer, slot)
    return constants


class Numbering:
    """How the rows of each shard of a stack are numbered in its tables.

    Parameters
    ----------
    members : sequence of Member
        All of the stack.

    Attributes
    ----------
    starts : ndarray of int64, shape (shards, members)
        The shard's local row that is the table's first there.
    firsts : ndarray of int64, shape (shards, members)
        The same as the stack's own row; of a stack with one member it is the local row.
    rows, steps : ndarray of int64, shape (shards, members)
        The table's number of that row, and how much it grows from each local row to the next.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        of_members = [(member.start, member.first) for member in members]
        self.starts = np.array([start for start, _ in of_members]).T
        self.firsts = np.array([s if first is None else first for s, first in of_members]).T
        own = [
            [member.layout.row_range(shard) for member in members]
            for shard in range(self.starts.shape[0])
        ]
        self.rows = np.array([[one.start for one in shard] for shard in own])
        self.steps = np.array([[one.step for one in shard] for shard in own])

    def renumber(self, of_shards: NDArray[np.int32]) -> None:
        """Overwrite the stack's rows, of each shard's touched lines, by the tables' own.

        Parameters
        ----------
        of_shards : ndarray of int32, shape (shards, n)
            Ascending in each shard; below 0 where there is none.
        """
        for row_ids, firsts, first_rows, steps in zip(
            of_shards, self.firsts, self.rows, self.steps, strict=True
        ):
            touched = np.flatnonzero(row_ids >= 0)
            rows = row_ids[touched]
            counts = np.diff(np.searchsorted(rows, firsts), append=rows.size)
            if (steps != 1).any():
                rows = rows * np.repeat(steps, counts)
            row_ids[touched] = rows + np.repeat(first_rows - firsts * steps, counts)


def numbered(numbering: Numbering, route: UpdateRoute) -> UpdateRoute:
    """Return the route of an update over a stack, with rows numbered as in their own tables.

    Parameters
    ----------
    numbering : Numbering
    route : UpdateRoute
        Whose ``row_ids``, if it has them, are overwritten.
    """
    members = numbering.starts.shape[1]
    if members == 1:
        return route
    if "row_ids" in route.arrays:
        numbering.renumber(route.arrays["row_ids"])
        return route
    of_members = {
        "member_start": numbering.starts,
        "member_row": numbering.rows,
        "member_stride": numbering.steps,
    }
    arrays = {name: array.astype(np.int32) for name, array in of_members.items()}
    shape = dataclasses.replace(route.shape, members=members)
    return dataclasses.replace(route, shape=shape, arrays=route.arrays | arrays)

"""Boxes of a tensor: an offset and a size per axis, and what a set of them covers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Box", "whole", "contains", "rows_of", "row_ranges", "first_overlap", "cover_problem"]


@dataclass(frozen=True)
class Box:
    """A part of a tensor, along its axes.

    Parameters
    ----------
    offset : tuple of int
        First index per axis.
    shape : tuple of int
        Size per axis.

    Examples
    --------
    >>> Box((4, 0), (2, 8)).size
    16
    >>> Box((4, 0), (2, 8)).rows
    range(4, 6)
    >>> str(Box((4, 0), (2, 8)))
    '[4:6, 0:8]'
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def rows(self) -> range:
        """Indices along the first axis; ``range(0, 1)`` for a box without axes."""
        if not self.shape:
            return range(1)
        return range(self.offset[0], self.offset[0] + self.shape[0])

    def __str__(self) -> str:
        spans = zip(self.offset, self.shape, strict=True)
        return f"[{', '.join(f'{offset}:{offset + size}' for offset, size in spans)}]"


def whole(shape: tuple[int, ...]) -> Box:
    """Return the box that is all of a tensor of `shape`.

    Examples
    --------
    >>> whole((3, 2))
    Box(offset=(0, 0), shape=(3, 2))
    """
    return Box((0,) * len(shape), shape)


def contains(outer: Box, inner: Box) -> bool:
    """Return whether `inner`, of equal rank, lies within `outer`.

    Examples
    --------
    >>> contains(Box((4, 0), (2, 8)), Box((4, 2), (1, 6)))
    True
    """
    return all(
        a <= b and b + size_b <= a + size_a
        for a, size_a, b, size_b in zip(
            outer.offset, outer.shape, inner.offset, inner.shape, strict=True
        )
    )


def rows_of(box: Box, start: int, stop: int) -> Box:
    """Return the part of `box` that lies in rows ``[start, stop)`` of the tensor.

    Examples
    --------
    >>> rows_of(Box((4, 8), (4, 2)), 5, 7)
    Box(offset=(5, 8), shape=(2, 2))
    """
    if not box.shape:
        return box
    return Box((start, *box.offset[1:]), (stop - start, *box.shape[1:]))


def row_ranges(start: int, stop: int, rows_per_block: int) -> Iterator[tuple[int, int]]:
    """Yield ``[start, stop)`` in ranges of at most `rows_per_block` rows.

    Examples
    --------
    >>> list(row_ranges(3, 8, 2))
    [(3, 5), (5, 7), (7, 8)]
    """
    for first in range(start, stop, max(1, rows_per_block)):
        yield first, min(stop, first + max(1, rows_per_block))


def first_overlap(boxes: Sequence[Box]) -> tuple[int, int] | None:
    """Return the indices of two boxes, of one rank, that share an element; None if no two do.

    Examples
    --------
    >>> first_overlap([Box((0,), (2,)), Box((4,), (2,)), Box((1,), (3,))])
    (0, 2)
    """
    solid = [(index, box) for index, box in enumerate(boxes) if box.size]
    if not solid or not solid[0][1].shape:
        return (solid[0][0], solid[1][0]) if len(solid) > 1 else None
    # Sweep along the axis that separates most boxes, so that few are open at a time.
    rank = len(solid[0][1].shape)
    sweep = max(range(rank), key=lambda axis: len({box.offset[axis] for _, box in solid}))
    opened: list[tuple[int, Box]] = []
    for index, box in sorted(solid, key=lambda item: item[1].offset[sweep]):
        start = box.offset[sweep]
        opened = [o for o in opened if o[1].offset[sweep] + o[1].shape[sweep] > start]
        for other_index, other in opened:
            if _overlap(box, other):
                first, second = sorted((index, other_index))
                return first, second
        opened.append((index, box))
    return None


def cover_problem(shape: tuple[int, ...], boxes: Sequence[Box]) -> str | None:
    """Return why `boxes` do not cover a tensor of `shape` exactly once, or None where they do.

    Boxes within bounds that are pairwise disjoint and add up to the tensor's size leave no gap.

    Examples
    --------
    >>> cover_problem((4,), [Box((0,), (2,)), Box((2,), (2,))])
    >>> cover_problem((4,), [Box((0,), (2,)), Box((1,), (3,))])
    'boxes[0] and boxes[1] overlap'
    >>> cover_problem((4,), [Box((0,), (3,))])
    'boxes cover 3 of 4 elements'
    """
    rank = len(shape)
    for index, box in enumerate(boxes):
        if len(box.offset) != rank or len(box.shape) != rank:
            return (
                f"boxes[{index}] has {len(box.offset)} offsets and {len(box.shape)} sizes, "
                f"the tensor has {rank} axes"
            )
        for axis, (offset, size, bound) in enumerate(
            zip(box.offset, box.shape, shape, strict=True)
        ):
            if offset < 0 or size < 0 or offset + size > bound:
                return (
                    f"boxes[{index}] spans [{offset}, {offset + size}) on axis {axis}, "
                    f"the tensor spans [0, {bound})"
                )
    overlap = first_overlap(boxes)
    if overlap is not None:
        return f"boxes[{overlap[0]}] and boxes[{overlap[1]}] overlap"
    covered = sum(box.size for box in boxes)
    if covered != math.prod(shape):
        return f"boxes cover {covered} of {math.prod(shape)} elements"
    return None


def _overlap(left: Box, right: Box) -> bool:
    return all(
        a < b + size_b and b < a + size_a
        for a, size_a, b, size_b in zip(
            left.offset, left.shape, right.offset, right.shape, strict=True
        )
    )

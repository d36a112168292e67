"""Arguments read and checked: what is wrong is said by argument, rule, value and position.

::

    shapes     counts, shapes, axes, and arrays that memory has room for
    integers   arrays of integers as int32 or int64, and the names of their elements
    arrays     arrays of ids and of floats, from whatever NumPy can read
"""

from __future__ import annotations

from shardcore.validation.arrays import as_floats, as_ids, read_array, read_numbers
from shardcore.validation.integers import integers, outside, place_in
from shardcore.validation.shapes import (
    as_axis,
    as_count,
    as_integer,
    as_shape,
    check_addressable,
    check_rank,
    new_array,
)

__all__ = [
    "as_axis",
    "as_count",
    "as_integer",
    "as_shape",
    "check_addressable",
    "check_rank",
    "new_array",
    "integers",
    "outside",
    "place_in",
    "as_floats",
    "as_ids",
    "read_array",
    "read_numbers",
]

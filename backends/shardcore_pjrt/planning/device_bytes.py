"""How many bytes of a TPU device's memory a table and its slots take: arithmetic, no compiler.

An array of two axes is stored in tiles of 8 lines by 128 lanes, an array of one axis in pieces of
1,024; smaller ones are rounded up to a power of two. With 128 lanes, lines fill their tiles. That
the compiler lays tables out so is tested, not assumed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from shardcore.optimizer import Optimizer
from shardcore_pjrt.mesh.geometry import Geometry

__all__ = ["slot_bytes", "table_bytes"]

_LANES = 128
_TILE_LINES = 8
_PIECE = 1024


def table_bytes(geometry: Geometry, dtype: np.dtype[Any]) -> int:
    """Return the bytes of a table on each device that holds a part of it.

    Parameters
    ----------
    geometry : Geometry
    dtype : dtype
        Of 4 or 2 bytes.

    Examples
    --------
    >>> table_bytes(Geometry(1000, 64, 4, "row", lanes=128), np.dtype("float32"))  # 125 lines
    65536
    """
    packed = 4 // dtype.itemsize  # lines that share a word
    lines = _rounded(geometry.lines, packed, _TILE_LINES)
    return lines * -(-geometry.line_width // _LANES) * _LANES * dtype.itemsize


def slot_bytes(geometry: Geometry, dtype: np.dtype[Any], optimizer: Optimizer | None) -> int:
    """Return the bytes of all slots of a table on each device that holds a part of it.

    Parameters
    ----------
    geometry : Geometry
    dtype : dtype
        Of the table.
    optimizer : Optimizer or None

    Examples
    --------
    >>> from shardcore.optimizers import Adam
    >>> slot_bytes(Geometry(1000, 64, 4, "row", lanes=128), np.dtype("float32"), Adam())
    131072
    """
    total = 0
    for slot in optimizer.slots if optimizer is not None else ():
        stored = slot.storage_dtype(dtype)
        if slot.kind == "element":
            total += table_bytes(geometry, stored)
        else:
            total += _rounded(geometry.local_rows, _LANES, _PIECE) * stored.itemsize
    return total


def _rounded(count: int, least: int, piece: int) -> int:
    """Round up to a multiple of a piece or, below one, to a power of two."""
    if count < piece:
        return max(least, 1 << math.ceil(math.log2(count)))
    return -(-count // piece) * piece

"""Initial values of tables, a block of rows at a time.

An initializer is any callable ``init(rows, row_shape, dtype, seed)``: `rows` are global row ids
(int64), the result has shape ``(len(rows), *row_shape)``. The ones here depend, element by element,
on (seed, global row, flat column) only: rows may come in any order and in any blocks, so a table is
the same for every number of shards and every layout. A callable of a user's own has the same
property if it derives its values from `rows` alone.

Random numbers come from the generator documented in ``shardcore/_core/random.pyx``. They are
computed in float64 and rounded once to the dtype asked for.

::

    base            the protocol, seeds, and what all of them check
    distributions   `TruncatedNormal`, `Normal`, `Uniform`
    constants       `Constant`, `Zeros`, `RowId`, `FromArray`
    foreign         those of Keras, TensorFlow and JAX, as ours
    filling         any initializer, called a block of rows at a time
"""

from __future__ import annotations

from shardcore.initializers.base import Initializer, derived_seed
from shardcore.initializers.constants import Constant, FromArray, RowId, Zeros
from shardcore.initializers.distributions import Normal, TruncatedNormal, Uniform
from shardcore.initializers.filling import as_block, as_initializer, blocks, fill

__all__ = [
    "Initializer",
    "derived_seed",
    "TruncatedNormal",
    "Normal",
    "Uniform",
    "Constant",
    "Zeros",
    "RowId",
    "FromArray",
    "as_block",
    "as_initializer",
    "blocks",
    "fill",
]

"""Bags of ids: how a caller gives them, and the one form that everything below reads.

::

    row_splits   where each bag starts, to and from lengths and row ids
    ragged       `Ragged`: values and row_splits, and weights
    sparse       `Sparse`: coordinates, values and a dense shape
    arrow        columns of pyarrow, polars, pandas, as a `Ragged`
    tensorflow   its tensors of bags, as `Ragged` and `Sparse`
    formats      every other input format, as a `Ragged`
    hashing      strings and integers as row numbers: `Hash`
    digests      their 64-bit hashes, by kernels; of Arrow's arrays in `arrow_strings`
    own_arrays   copies of ids that a caller cannot change any more
"""

from __future__ import annotations

from shardcore.ids.formats import as_ragged, as_weights
from shardcore.ids.hashing import Hash, hash_ids
from shardcore.ids.ragged import Ragged
from shardcore.ids.row_splits import (
    check_row_splits,
    lengths_from_row_splits,
    row_ids_from_row_splits,
    row_splits_from_lengths,
    row_splits_from_row_ids,
)
from shardcore.ids.sparse import Sparse

__all__ = [
    "check_row_splits",
    "lengths_from_row_splits",
    "row_ids_from_row_splits",
    "row_splits_from_lengths",
    "row_splits_from_row_ids",
    "Hash",
    "Ragged",
    "Sparse",
    "as_ragged",
    "as_weights",
    "hash_ids",
]

"""Readable NumPy twins of the kernels: obvious, slow, exact to the last bit.

::

    offsets      row splits, lengths, row ids
    placement    which shard has which row; slices over shards
    rows         combine, accumulate, update, scatter; gradients of weights
    routing      which rows askers name of owners
    triples      a batch by worker, holder and row
    random       initial values
    hashing      rows of strings and integers

A twin has the name and the arguments of the face it mirrors, less those that say where
to write (``out``) or how to complain (``argument``): twins trust what they are given. Every sum is
taken element by element in the order that the contract defines, so equality is `==`, never "close".
"""

from __future__ import annotations

from shardcore.reference.hashing import (
    hash_fixed,
    hash_integers,
    hash_spans,
    hash_views,
    hash_words,
)
from shardcore.reference.offsets import (
    lengths_from_row_splits,
    row_ids_from_row_splits,
    row_splits_from_lengths,
    row_splits_from_offsets,
    row_splits_from_row_ids,
)
from shardcore.reference.placement import (
    decompose_slice,
    locate,
    partition,
    take_bags,
    take_ids,
)
from shardcore.reference.random import (
    logarithm,
    normal,
    truncated_normal,
    uniform,
    uniform_bits,
)
from shardcore.reference.routing import sort_askers
from shardcore.reference.rows import (
    accumulate,
    at_winners,
    divisors,
    gather_rows,
    max_of_bags,
    narrowed,
    occurrence_gains,
    put_rows,
    reciprocals,
    row_dots,
    scaled_to_norm,
    scatter_rows,
    segment_reduce,
    sort_bags,
    sort_occurrences,
    stochastic_round,
    update_rows,
    weight_gradients,
    widened,
)
from shardcore.reference.triples import sort_triples

__all__ = [
    "accumulate",
    "at_winners",
    "decompose_slice",
    "divisors",
    "gather_rows",
    "hash_fixed",
    "hash_integers",
    "hash_spans",
    "hash_views",
    "hash_words",
    "lengths_from_row_splits",
    "locate",
    "logarithm",
    "max_of_bags",
    "narrowed",
    "normal",
    "occurrence_gains",
    "partition",
    "put_rows",
    "reciprocals",
    "stochastic_round",
    "row_dots",
    "scaled_to_norm",
    "row_ids_from_row_splits",
    "row_splits_from_lengths",
    "row_splits_from_offsets",
    "row_splits_from_row_ids",
    "scatter_rows",
    "segment_reduce",
    "sort_askers",
    "sort_bags",
    "sort_occurrences",
    "sort_triples",
    "take_bags",
    "take_ids",
    "truncated_normal",
    "uniform",
    "uniform_bits",
    "update_rows",
    "weight_gradients",
    "widened",
]

"""Lookups without an engine: TensorFlow's functions, serving, and one prepared once.

::

    lookup     `embedding_lookup`, `embedding_lookup_sparse`, the safe one
    serving    `serving_embedding_lookup`: a structure of features over plain arrays
    prepared   `prepare_lookup`: the short way for a single table
"""

from __future__ import annotations

from shardcore.lookup.lookup import (
    embedding_lookup,
    embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)
from shardcore.lookup.prepared import PreparedLookup, prepare_lookup
from shardcore.lookup.serving import serving_embedding_lookup

__all__ = [
    "embedding_lookup",
    "embedding_lookup_sparse",
    "safe_embedding_lookup_sparse",
    "serving_embedding_lookup",
    "PreparedLookup",
    "prepare_lookup",
]

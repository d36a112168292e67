"""`ShardedEmbedding`: features in, activations out, gradients back.

::

    tables          the tables of the features, and the backend that gets them
    in_flight       batches that were looked up and have not ended yet
    inputs          features to batches, and back to the structure of the features
    given_lookups   lookups of arrays as they are given, in one compiled call
    gradients       gradients and learning rates to one update per table
    pipeline        operations in the caller's thread, or one step behind it
    progress        steps, and what is taken back of them
    counters        what `metrics` counts
    life            open, then closed
    training        lookups and updates of batches, held by their callers or in line
    handle          `Lookup`, a batch held by its caller
    building        the creation of the tables: all, or none
    checkpointing   what a checkpoint holds of an engine
    description     the configuration as JSON
    table_owner     tables made, seen, counted, saved, given back
    embedding       the engine itself
"""

from __future__ import annotations

from shardcore.engine.embedding import ShardedEmbedding
from shardcore.engine.handle import Lookup

__all__ = ["Lookup", "ShardedEmbedding"]

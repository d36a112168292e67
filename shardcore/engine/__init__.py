"""`ShardedEmbedding`: features in, activations out, gradients back.

::

    tables          the tables of the features, and the backend that gets them
    gradients       gradients and learning rates to one update per table
    in_flight       batches that were looked up and not trained on yet
    pipeline        operations in the caller's thread, or one step behind it
    checkpointing   what a checkpoint holds of an engine
    description     the configuration as JSON
    embedding       the engine itself
"""

from __future__ import annotations

from shardcore.engine.embedding import ShardedEmbedding

__all__ = ["ShardedEmbedding"]

"""Memory for large arrays: that of tables, and what batches use one after the other.

::

    zeros   tables: zeroed, aligned, on huge pages where the system has them
    pool    what a batch needs and lets go: ids, sorted rows, activations
"""

from __future__ import annotations

from shardcore.memory.zeros import aligned_zeros

__all__ = ["aligned_zeros"]

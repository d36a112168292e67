"""`ShardedVariable`: a NumPy array that lives in shards.

::

    row_store     rows in arrays, or in a table of a backend
    indexing      NumPy's indexing, as row numbers
    scatter       scatter_add, scatter_nd_update, …: NumPy's ufunc.at
    array_mixin   operators and what else makes it an array
    variable      the class, and `create_variable`
    partitioned   `create_partitioned_variables`
"""

from __future__ import annotations

from shardcore.variable.partitioned import create_partitioned_variables
from shardcore.variable.row_store import ArrayRowStore, BackendRowStore, RowStore
from shardcore.variable.variable import ShardedVariable, create_variable

__all__ = [
    "ShardedVariable",
    "create_variable",
    "create_partitioned_variables",
    "ArrayRowStore",
    "BackendRowStore",
    "RowStore",
]

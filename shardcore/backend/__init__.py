"""The contract of backends, and the messages that reach them.

::

    base            `Backend`, and the contract in its docstring
    messages        tables, bags and updates as a backend is given them
    gradients       gradients of bags to gradients of rows
    quantization    the rounding of rows that are looked up
    process_group   several processes that hold tables together
"""

from __future__ import annotations

from shardcore.backend.base import Backend
from shardcore.backend.gradients import (
    gains_of,
    gradient_rows,
    gradient_rows_of_tables,
    joined_gains,
    scaled,
    sorted_rows,
    sorted_rows_of_tables,
)
from shardcore.backend.messages import FeatureBags, TableBatch, TableSpec, TableUpdate
from shardcore.backend.process_group import Part, Read, Together
from shardcore.backend.quantization import QuantizationConfig

__all__ = [
    "Backend",
    "TableSpec",
    "FeatureBags",
    "TableBatch",
    "TableUpdate",
    "gains_of",
    "gradient_rows",
    "gradient_rows_of_tables",
    "joined_gains",
    "scaled",
    "sorted_rows",
    "sorted_rows_of_tables",
    "QuantizationConfig",
    "Together",
    "Part",
    "Read",
]

"""The contract of backends, and the messages that reach them.

::

    base             `Backend`, and the contract in its docstring
    capabilities     what a backend can do, declared
    max_norm         rows scaled down to a greatest norm
    messages         tables, bags and updates as a backend is given them; what it reports
    initial_values   the rows and slots of a new table
    from_rows        lookups and updates out of `gather` and `scatter` alone
    gradients        gradients of bags to gradients of rows
    quantization     the rounding of rows that are looked up
    process_group    several processes that hold tables together
"""

from __future__ import annotations

from shardcore.backend.base import Backend
from shardcore.backend.capabilities import Capabilities
from shardcore.backend.from_rows import dots_from_rows
from shardcore.backend.gradients import (
    RowSorts,
    gains_of,
    gradient_rows,
    gradient_rows_of_tables,
    joined_gains,
    scaled,
    sorted_rows,
)
from shardcore.backend.initial_values import initial_arrays, initial_blocks
from shardcore.backend.max_norm import scaled_to_norm
from shardcore.backend.messages import FeatureBags, NotFinite, TableBatch, TableSpec, TableUpdate
from shardcore.backend.process_group import Part, ProcessGroup, Read
from shardcore.backend.quantization import QuantizationConfig

__all__ = [
    "Backend",
    "Capabilities",
    "FeatureBags",
    "NotFinite",
    "Part",
    "ProcessGroup",
    "QuantizationConfig",
    "Read",
    "RowSorts",
    "TableBatch",
    "TableSpec",
    "TableUpdate",
    "dots_from_rows",
    "gains_of",
    "gradient_rows",
    "gradient_rows_of_tables",
    "initial_arrays",
    "initial_blocks",
    "joined_gains",
    "scaled",
    "scaled_to_norm",
    "sorted_rows",
]

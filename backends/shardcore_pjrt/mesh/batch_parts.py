"""The parts of a call's arguments that must be the same in every process, by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import Part, TableBatch, TableSpec, TableUpdate

__all__ = ["access_parts", "batch_parts", "table_parts", "update_parts"]


def table_parts(spec: TableSpec) -> Iterator[Part]:
    """Yield a table's settings; its initial values are compared when they are written."""
    optimizer = None if spec.optimizer is None else spec.optimizer.config()
    quantization = spec.quantization
    yield "name of the table", spec.name
    yield (
        f"settings of table {spec.name!r}",
        repr(
            (
                (spec.num_rows, spec.dim, spec.dtype.name, spec.seed),
                (spec.layout, spec.placement, spec.exchange, quantization, spec.max_norm),
            )
        ),
    )
    yield f"optimizer of table {spec.name!r}", json.dumps(optimizer, sort_keys=True)


def access_parts(
    table: str,
    slot: str | None,
    rows: NDArray[np.int64],
    values: NDArray[Any] | None = None,
) -> Iterator[Part]:
    """Yield the rows, and values if any, of a read or write of a table or a slot of it."""
    yield "name of the table", repr((table, slot))
    yield f"rows of table {table!r}", rows
    if values is not None:
        yield f"values of table {table!r}", values


def batch_parts(batches: Sequence[TableBatch], content: bool) -> Iterator[Part]:
    """Yield the tables of a batch, and the bags of each of their features.

    Parameters
    ----------
    batches : sequence of TableBatch
    content : bool
        Whether arrays are compared by their values, which takes the time to read them all; else by
        dtype and shape.
    """

    def shown(array: NDArray[Any]) -> NDArray[Any] | str:
        return array if content else _kind(array)

    asked = [(batch.table, len(batch.features), batch.training) for batch in batches]
    yield "tables", repr(asked)
    for batch in batches:
        for at, bags in enumerate(batch.features):
            name = f"feature {at} of table {batch.table!r}"
            yield f"ids of {name}", shown(bags.ids)
            yield f"row_splits of {name}", shown(bags.row_splits)
            for what, array in (("weights", bags.weights), ("divisors", bags.divisors)):
                yield f"{what} of {name}", b"" if array is None else shown(array)


def update_parts(updates: Sequence[TableUpdate], content: bool) -> Iterator[Part]:
    """Yield the arguments of an update; of arrays on devices, one for all processes, only the kind.

    The batch was the same in every process when it was looked up.

    Parameters
    ----------
    updates : sequence of TableUpdate
    content : bool
        As in `batch_parts`, of gradients on the host.
    """
    yield "tables", repr([update.batch.table for update in updates])
    for update in updates:
        table = f"table {update.batch.table!r}"
        yield f"step of {table}", str(update.step)
        yield f"hyper-parameters of {table}", np.array(update.hyper, np.float64)
        for at, gradient in enumerate(update.gradients):
            name = f"gradient {at} of {table}"
            if gradient is None:
                yield name, b""
            elif isinstance(gradient, np.ndarray):
                yield name, gradient if content else _kind(gradient)
            else:
                yield name, f"on devices: {_kind(gradient)}"


def _kind(array: Any) -> str:
    return f"{array.dtype} {array.shape}"

"""The first values of a table's slots, the same on every backend.

An optimizer's slots begin as they are declared, each from a number, an array or an initializer
(`SlotSpec.fill`); or, where the optimizer's class has an `init` of its own, from what that returns
for the rows as they are then. Either way a row's slots depend on the row, its number and the seed
only: blocks, shards and layouts do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.dtypes import working_dtype
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.initializers.filling import as_block
from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.slots import SlotSpec

__all__ = ["constant_of", "fill_slots", "initial_slots"]

_BLOCK_BYTES: Final = 1 << 20

Array = NDArray[Any]
RowIds = NDArray[np.int64] | range


def initial_slots(
    optimizer: Optimizer | None, rows: Array, global_rows: RowIds, seed: int
) -> dict[str, Array]:
    """Return the slots of rows that were never updated.

    Parameters
    ----------
    optimizer : Optimizer or None
        None has no slots.
    rows : (n, dim) array of the table's dtype
        The rows' initial values, whole rows; read where the optimizer says so.
    global_rows : int64 array (n,), or range of length n
        The number of each row in the whole table.
    seed : int in [0, 2**64)
        Of the table.

    Returns
    -------
    dict of slot name -> new (n, dim) or (n, 1) array of the slot's storage dtype

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
        If an initializer, or the optimizer's `init`, gives no such values.

    Examples
    --------
    >>> import shardcore as sc
    >>> optimizer = sc.optimizers.Adagrad(slot_initial_values={"accumulators": [[1.0], [2.0]]})
    >>> initial_slots(optimizer, np.zeros((1, 1), np.float32), range(1, 2), seed=0)
    {'accumulators': array([[2.]], dtype=float32)}
    """
    if optimizer is None:
        return {}
    slots = {
        slot.name: np.zeros(slot.shape(*rows.shape), slot.storage_dtype(rows.dtype))
        for slot in optimizer.slots
    }
    fill_slots(optimizer, slots, rows, global_rows, seed, zeroed=True)
    return slots


def fill_slots(
    optimizer: Optimizer,
    out: Mapping[str, Array],
    rows: Array | None,
    global_rows: RowIds,
    seed: int,
    *,
    zeroed: bool = False,
) -> None:
    """Write the slots of rows that were never updated.

    Parameters
    ----------
    optimizer : Optimizer
    out : mapping of slot name -> (n, dim) or (n, 1) array of the slot's storage dtype, written
        The slots to fill; others of the optimizer may be missing.
    rows : (n, dim) array, or None
        The rows' initial values. None will do where ``optimizer.init_reads_rows`` is False.
    global_rows : int64 array (n,), or range of length n
    seed : int in [0, 2**64)
        Of the table.
    zeroed : bool
        Whether `out` holds zeros: a constant 0 is then not written, pages stay untouched.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
        If an initializer, or the optimizer's `init`, gives no such values; if `rows` is needed and
        None.
    """
    if optimizer.init_reads_rows:
        _fill_from_rows(optimizer, out, rows, global_rows, seed)
        return
    for slot in optimizer.slots:
        if slot.name in out and not (zeroed and slot.constant == 0):
            slot.write_fill(out[slot.name], global_rows, seed)


def constant_of(optimizer: Optimizer, slot: SlotSpec) -> float | None:
    """Return the number that all of a slot starts from, or None if its elements may differ."""
    return None if optimizer.init_reads_rows else slot.constant


def _fill_from_rows(
    optimizer: Optimizer,
    out: Mapping[str, Array],
    rows: Array | None,
    global_rows: RowIds,
    seed: int,
) -> None:
    """Write what the optimizer's own `init` returns, a block of rows at a time."""
    if rows is None:
        raise ShardcoreValueError(
            f"rows must be given: optimizer {optimizer.name} makes slots from them, got None"
        )
    value = working_dtype(rows.dtype)
    size = max(1, _BLOCK_BYTES // max(1, rows.shape[1] * value.itemsize))
    names = [slot.name for slot in optimizer.slots]
    for start in range(0, len(rows), size):
        block = slice(start, start + size)
        ids, values = np.array(global_rows[block], np.int64), np.array(rows[block], value)
        ids.flags.writeable = values.flags.writeable = False
        with np.errstate(all="ignore"):  # as in updates, infinities come without a word
            found = optimizer.init(values, ids, seed)
        if not isinstance(found, Mapping):
            raise ShardcoreTypeError(
                f"init of optimizer {optimizer.name} must return a mapping of slot names to "
                f"arrays, got {type(found).__name__}"
            )
        if set(found) != set(names):
            raise ShardcoreValueError(
                f"init of optimizer {optimizer.name} must return the slots {names}, "
                f"got {list(found)}"
            )
        for name, array in out.items():
            who = f"init of optimizer {optimizer.name}, slot {name!r},"
            array[block] = as_block(found[name], array.shape[1:], array.dtype, ids, who)

"""The state of an engine inside a file of weights of Keras: rows, slots, and the step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.checkpoint.boxes import whole
from shardcore.checkpoint.state import RestorePlan, SavedTensor
from shardcore.dtypes import as_dtype
from shardcore.engine.embedding import ShardedEmbedding
from shardcore.errors import ShardcoreValueError
from shardcore.threads.work import uninterrupted

__all__ = ["load_state", "restore_arrays", "save_state"]

_INDEX: Final = "shardcore"  # JSON, as bytes: what the arrays are, and the engine's metadata


def save_state(engine: ShardedEmbedding, store: Any) -> None:
    """Put all tables and slots into a store of arrays.

    Parameters
    ----------
    engine : ShardedEmbedding
    store : mapping of str to array
        As Keras gives it to ``save_own_variables``.
    """
    index: dict[str, Any] = {"metadata": engine.checkpoint_metadata(), "arrays": []}
    slots = engine.slots
    for table, view in engine.tables.items():
        for name, one in [(table, view)] + [
            (f"{table}/{slot}", of_slot) for slot, of_slot in slots[table].items()
        ]:
            values = one.numpy()
            key = f"array_{len(index['arrays'])}"
            index["arrays"].append({"name": name, "key": key, "dtype": values.dtype.name})
            # HDF5 has no bfloat16: its bits are kept.
            store[key] = values.view(np.uint16) if values.dtype.name == "bfloat16" else values
    store[_INDEX] = np.frombuffer(json.dumps(index).encode(), np.uint8)


def load_state(engine: ShardedEmbedding, store: Any, layer: str) -> None:
    """Take all tables and slots from a store that `save_state` filled; all, or nothing.

    Parameters
    ----------
    engine : ShardedEmbedding
    store : mapping of str to array
    layer : str
        Its name, for messages.

    Raises
    ------
    ShardcoreValueError
        If the store holds something else, or the tables are of another shape or dtype.
    """
    if _INDEX not in store.keys():  # noqa: SIM118 - Keras' stores have keys, and are no containers
        raise ShardcoreValueError(
            f"the weights of layer {layer!r} must be those of an engine, got {list(store.keys())}: "
            "rows of another layer are written with layer.engine.tables[name].assign(rows)"
        )
    index = json.loads(np.asarray(store[_INDEX]).tobytes())
    arrays: dict[str, NDArray[Any]] = {}
    for one in index["arrays"]:
        values = np.asarray(store[one["key"]])
        arrays[one["name"]] = (
            values.view(as_dtype("bfloat16")) if one["dtype"] == "bfloat16" else values
        )
    restore_arrays(engine, index["metadata"], arrays)


def restore_arrays(
    engine: ShardedEmbedding, metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Restore an engine as from a checkpoint that holds these arrays."""
    saved = {name: SavedTensor(array.shape, array.dtype) for name, array in arrays.items()}
    plan = engine.checkpoint_restore(dict(metadata), saved, slots="load")
    uninterrupted(_carry_out, plan, arrays)


def _carry_out(plan: RestorePlan, arrays: Mapping[str, NDArray[Any]]) -> None:
    try:
        plan.begin()
        for name, write in plan.writes.items():
            write(whole(arrays[name].shape), np.ascontiguousarray(arrays[name]))
    except BaseException:
        plan.abort()
        raise
    plan.commit()

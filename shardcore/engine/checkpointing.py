"""An engine in a checkpoint: which tensors it saves, and when saved ones fit it.

Logical rows are saved, never placement: any number of hosts, either layout and any backend can take
them. Tensor ``<table>`` holds the weights, ``<table>/<slot>`` an optimizer slot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.base import Backend
from shardcore.backend.messages import TableSpec
from shardcore.checkpoint.boxes import Box
from shardcore.checkpoint.state import SavedTensor, TensorSource
from shardcore.engine.tables import PlannedTable
from shardcore.errors import CorruptCheckpointError, ShardcoreValueError
from shardcore.initializers.base import derived_seed
from shardcore.initializers.constants import Zeros
from shardcore.optimizer.slot_values import fill_slots
from shardcore.sharding.layout import Layout

__all__ = ["EmbeddingRestore", "embedding_metadata", "embedding_sources", "plan_restore"]

_BLOCK_ROWS = 1 << 16


def embedding_metadata(tables: Sequence[PlannedTable], step: int, seed: int) -> dict[str, Any]:
    """Return, in terms of JSON, what an engine must find again."""
    return {
        "step": step,
        "seed": seed,
        "tables": [
            {
                "name": table.spec.name,
                "named": table.named,
                "optimizer": table.spec.optimizer.config() if table.spec.optimizer else None,
                "slots": [slot.name for slot in table.spec.slots],
            }
            for table in tables
        ],
    }


def _tensors(spec: TableSpec) -> dict[str, tuple[str | None, tuple[int, int], np.dtype[Any]]]:
    """Return tensor name -> (slot or None, shape, dtype) of a table."""
    return {
        spec.name if slot is None else f"{spec.name}/{slot}": (slot, *spec.stored_as(slot))
        for slot in spec.arrays
    }


def embedding_sources(tables: Sequence[PlannedTable], backend: Backend) -> list[TensorSource]:
    """Return the tensors of an engine: each host writes a range of logical rows."""
    sources = []
    for table in tables:
        spec = table.spec
        ranges = Layout.div(spec.num_rows, backend.num_hosts)
        for name, (slot, shape, dtype) in _tensors(spec).items():
            boxes = tuple(
                (host, Box((int(ranges.offsets[host]), 0), (int(size), shape[1])))
                for host, size in enumerate(ranges.shard_sizes)
                if size or shape[0] == 0
            )
            sources.append(
                TensorSource(
                    name, shape, dtype, boxes, _reader(backend, spec.name, slot), spec.name
                )
            )
    return sources


def _reader(backend: Backend, table: str, slot: str | None) -> Callable[[Box], NDArray[Any]]:
    def read(box: Box) -> NDArray[Any]:
        return backend.read(table, slot, box.rows.start, box.rows.stop)

    return read


@dataclass(frozen=True, eq=False)
class EmbeddingRestore:
    """How an engine takes its tables from a checkpoint.

    Attributes
    ----------
    seed : int
        That of the engine that was saved. It becomes the engine's own, also where slots begin anew
        or the engine has only some of the saved tables: initial values of slots, and chance in
        updates, are those of the saved run.
    tables : list of PlannedTable
        The engine's, with the seeds that follow from it.
    specs : list of TableSpec
        The tables to create where the engine is not built; their initializer is zeros, as all of it
        is overwritten.
    writes : dict of tensor name -> callable
    skipped : tuple of str
        Tensors of the checkpoint that the engine has no place for.
    step : int
    reset_slots : callable
        Gives the slots that are not restored their initial values; those that begin from the rows
        have theirs from what `writes` wrote.
    """

    seed: int
    tables: list[PlannedTable]
    specs: list[TableSpec]
    writes: dict[str, Callable[[Box, NDArray[Any]], None]]
    skipped: tuple[str, ...]
    step: int
    reset_slots: Callable[[], None]


def plan_restore(
    tables: Sequence[PlannedTable],
    backend: Backend,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, SavedTensor],
    *,
    live: bool,
    slots: str,
) -> EmbeddingRestore:
    """Check that a checkpoint fits an engine, and say what goes where. Changes nothing.

    Parameters
    ----------
    tables : sequence of PlannedTable
    backend : Backend
    metadata, tensors : as saved
    live : bool
        Whether the tables exist already.
    slots : {"load", "reset"}

    Raises
    ------
    CorruptCheckpointError
        If the metadata is not that of an engine.
    ShardcoreValueError
        If a table is missing or differs, or has another optimizer and slots are to be loaded.
    """
    saved, step, seed = _saved_tables(metadata)
    _check_names(tables, saved)
    tables = [_reseeded(table, seed) for table in tables]
    writes: dict[str, Callable[[Box, NDArray[Any]], None]] = {}
    to_reset: list[TableSpec] = []
    for table in tables:
        spec = table.spec
        load_slots = slots == "load" and spec.optimizer is not None
        if load_slots:
            _check_optimizer(spec, saved[spec.name])
        for name, (slot, shape, dtype) in _tensors(spec).items():
            if slot is not None and not load_slots:
                continue
            _check_tensor(name, shape, dtype, tensors)
            writes[name] = _writer(backend, spec.name, slot)
        if load_slots or spec.optimizer is None:
            continue
        if spec.optimizer.init_reads_rows:
            writes[spec.name] = _writer_of_all(backend, spec)
        elif live:
            to_reset.append(spec)

    def reset() -> None:
        for spec in to_reset:
            for start in range(0, spec.num_rows, _BLOCK_ROWS):
                rows = range(start, min(start + _BLOCK_ROWS, spec.num_rows))
                _write_initial_slots(backend, spec, rows, None)

    specs = [dataclasses.replace(table.spec, initializer=Zeros()) for table in tables]
    skipped = tuple(name for name in tensors if name not in writes)
    return EmbeddingRestore(seed, tables, specs, writes, skipped, step, reset)


def _reseeded(table: PlannedTable, seed: int) -> PlannedTable:
    spec = table.spec
    spec = dataclasses.replace(spec, seed=derived_seed(seed, spec.name))
    return dataclasses.replace(table, spec=spec)


def _saved_tables(metadata: Mapping[str, Any]) -> tuple[dict[str, Mapping[str, Any]], int, int]:
    step, seed, listed = (metadata.get(name) for name in ("step", "seed", "tables"))
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise CorruptCheckpointError(f"metadata of an engine must have a step >= 0, got {step!r}")
    if not isinstance(listed, list):
        raise CorruptCheckpointError(
            f"metadata of an engine must have a list of tables, got {listed!r}"
        )
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise CorruptCheckpointError(
            f"metadata of an engine must have an integer as seed, got {seed!r}"
        )
    saved: dict[str, Mapping[str, Any]] = {}
    for entry in listed:
        if (
            not isinstance(entry, Mapping)
            or not isinstance(entry.get("name"), str)
            or not isinstance(entry.get("named"), bool)
            or not isinstance(entry.get("slots"), list)
            or not isinstance(entry.get("optimizer"), Mapping | None)
        ):
            raise CorruptCheckpointError(f"metadata of an engine has a malformed table {entry!r}")
        saved[entry["name"]] = entry
    return saved, step, seed


def _check_names(tables: Sequence[PlannedTable], saved: Mapping[str, Mapping[str, Any]]) -> None:
    missing = [table.spec.name for table in tables if table.spec.name not in saved]
    if missing:
        raise ShardcoreValueError(
            f"the checkpoint has no table {', '.join(map(repr, missing))}; "
            f"it has {', '.join(map(repr, saved)) or 'none'}"
        )
    own = {table.spec.name for table in tables}
    for table in tables:
        automatic = not table.named or not saved[table.spec.name]["named"]
        if automatic and own != set(saved):
            raise ShardcoreValueError(
                f"table {table.spec.name!r} has an automatic name, which means nothing to another "
                f"set of tables: the checkpoint has {', '.join(map(repr, saved))}, "
                f"the engine {', '.join(map(repr, sorted(own)))}; name the tables"
            )


def _check_optimizer(spec: TableSpec, saved: Mapping[str, Any]) -> None:
    assert spec.optimizer is not None
    before = saved["optimizer"]
    name = None if before is None else before.get("name")
    if name != spec.optimizer.name:
        raise ShardcoreValueError(
            f"table {spec.name!r} was saved with optimizer {name}, the engine has "
            f"{spec.optimizer.name}; restore with slots='reset' to begin with fresh slots"
        )
    slots = [slot.name for slot in spec.optimizer.slots]
    if saved["slots"] != slots:
        raise ShardcoreValueError(
            f"table {spec.name!r} was saved with slots {saved['slots']}, the engine has {slots}; "
            "restore with slots='reset' to begin with fresh slots"
        )


def _check_tensor(
    name: str,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    tensors: Mapping[str, SavedTensor],
) -> None:
    if name not in tensors:
        raise CorruptCheckpointError(f"the checkpoint names tensor {name!r} but does not hold it")
    saved = tensors[name]
    if tuple(saved.shape) != shape or saved.dtype != dtype:
        raise ShardcoreValueError(
            f"tensor {name!r} was saved as {saved.dtype} {tuple(saved.shape)}, "
            f"the engine has {dtype} {shape}"
        )


def _writer(backend: Backend, table: str, slot: str | None) -> Callable[[Box, NDArray[Any]], None]:
    def write(box: Box, values: NDArray[Any]) -> None:
        backend.write(table, slot, box.rows.start, values)

    return write


def _writer_of_all(backend: Backend, spec: TableSpec) -> Callable[[Box, NDArray[Any]], None]:
    """Return what writes rows, and the slots that these rows begin with."""

    def write(box: Box, values: NDArray[Any]) -> None:
        backend.write(spec.name, None, box.rows.start, values)
        _write_initial_slots(backend, spec, range(box.rows.start, box.rows.stop), values)

    return write


def _write_initial_slots(
    backend: Backend, spec: TableSpec, rows: range, values: NDArray[Any] | None
) -> None:
    """Give the slots of some rows, whose values may be known, their initial values."""
    assert spec.optimizer is not None, "tables without an optimizer have no slots"
    slots = {
        slot.name: np.empty(slot.shape(len(rows), spec.dim), slot.storage_dtype(spec.dtype))
        for slot in spec.optimizer.slots
    }
    fill_slots(spec.optimizer, slots, values, rows, spec.seed)
    for name, slot in slots.items():
        backend.write(spec.name, name, rows.start, slot)

"""Our own way of doing each task."""

from __future__ import annotations

from functools import partial
from operator import getitem
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

import shardcore as sc
from shardcore_bench.contender import Arrays, Contender
from shardcore_bench.tasks import (
    LookupTask,
    PartitionTask,
    ShardsTask,
    SliceTask,
    StepTask,
    Update,
    VariableTask,
)

__all__ = [
    "decompose_slice",
    "engine_of",
    "lookup_in_shards",
    "lookup_of",
    "optimizer_of",
    "partition",
    "prepared_lookup",
    "read_slice",
    "step",
]


def engine_of(
    rows: NDArray[Any], combiner: str, optimizer: sc.Optimizer | None = None
) -> sc.ShardedEmbedding:
    """Return an engine with one table, "items", for one feature."""
    count, dim = rows.shape
    table = sc.TableConfig(
        count,
        dim,
        initializer=rows,
        combiner=cast(Literal["sum", "mean", "sqrtn"], combiner),
        name="items",
        dtype=rows.dtype,
    )
    engine = sc.ShardedEmbedding(sc.FeatureConfig(table), optimizer=optimizer)
    engine.build()
    return engine


def lookup_of(engine: sc.ShardedEmbedding, task: LookupTask) -> Contender:
    """Return the lookup through an engine that holds the task's table."""
    features = (task.ids, task.row_splits)
    if task.weights is None:
        return Contender("engine(...)", partial(engine, features), lambda found: (found,))
    weights = sc.Ragged(task.weights, task.row_splits)
    run = partial(engine, features, weights)
    return Contender("engine(..., weights)", run, lambda found: (found,))


def prepared_lookup(params: Any, what: str, task: LookupTask) -> Contender:
    """Return the prepared lookup in what `what` names."""
    run = partial(sc.prepare_lookup(params, task.combiner), task.ids, task.row_splits)
    return Contender(f"prepare_lookup({what})", run, lambda found: (found,))


def optimizer_of(update: Update) -> sc.Optimizer:
    """Return our optimizer of that definition."""
    options: dict[str, Any] = {"stochastic_rounding": True} if update.stochastic else {}
    name = update.name
    if name == "Adam":
        options["preset"] = "fbgemm"  # the same as torch's
    elif name == "momentum":
        name, options["momentum"] = "SGD", update.momentum
    elif name != "SGD":
        options["initial_accumulator_value"] = update.accumulator
    found: sc.Optimizer = getattr(sc.optimizers, name)(update.learning_rate, **options)
    return found


def step(task: StepTask) -> Contender:
    """Return enqueue, dequeue and apply_gradients of an engine with the task's tables."""
    configs = [
        sc.TableConfig(
            len(rows),
            rows.shape[1],
            initializer=rows,
            combiner="sum",
            name=f"t{at}",
            dtype=rows.dtype,
        )
        for at, rows in enumerate(task.tables)
    ]
    lengths = [
        int(np.diff(bags.row_splits).max()) if task.sequence else 0 for bags in task.features
    ]
    structure = [
        sc.FeatureConfig(configs[bags.table], max_sequence_length=length)
        for bags, length in zip(task.features, lengths, strict=True)
    ]
    features = [(bags.ids, bags.row_splits) for bags in task.features]
    gradients = [
        bags.gradient.reshape(-1, length, bags.gradient.shape[1]) if length else bags.gradient
        for bags, length in zip(task.features, lengths, strict=True)
    ]
    engine = sc.ShardedEmbedding(structure, optimizer=optimizer_of(task.update))
    engine.build()

    def run() -> Any:
        engine.enqueue(features)
        activations = engine.dequeue()
        engine.apply_gradients(gradients)
        return activations

    def arrays(found: Any) -> Arrays:
        activations = (one.reshape(-1, one.shape[-1]) for one in found)
        trained = (engine.tables[f"t{at}"][probe] for at, probe in enumerate(task.probes))
        return *activations, *trained

    return Contender("enqueue, dequeue, apply_gradients", run, arrays)


def partition(layout: sc.Layout, task: PartitionTask) -> Contender:
    """Return the partition of ids by a layout."""

    def arrays(found: sc.Partition) -> Arrays:
        return found.local, np.diff(found.row_splits), found.inverse

    return Contender("Layout.partition", partial(layout.partition, task.ids), arrays)


def decompose_slice(layout: sc.Layout, task: SliceTask) -> Contender:
    """Return the slices of shards that a slice of rows is."""

    def arrays(found: list[tuple[int, slice]]) -> Arrays:
        local = [np.arange(task.sizes[shard])[part] for shard, part in found]
        return np.array([shard for shard, _ in found]), *local

    run = partial(layout.decompose_slice, task.rows)
    return Contender("Layout.decompose_slice", run, arrays)


def read_slice(task: VariableTask) -> Contender:
    """Return the slice of a variable."""
    read = partial(getitem, sc.ShardedVariable(list(task.shards)), task.rows)
    return Contender("ShardedVariable[...]", read, lambda found: (found,))


def lookup_in_shards(task: ShardsTask) -> Contender:
    """Return the lookup in a list of shards."""
    run = partial(
        sc.embedding_lookup_sparse, list(task.shards), (task.ids, task.row_splits), combiner="sum"
    )
    return Contender("embedding_lookup_sparse", run, lambda found: (found,))

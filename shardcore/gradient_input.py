"""From the gradients that a caller gives to one update per table, and back to those of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from shardcore.backend import Backend
from shardcore.batch import TableUpdate
from shardcore.config import FeatureConfig
from shardcore.dtypes import working_dtype
from shardcore.errors import ShardcoreValueError
from shardcore.feature_input import read_gradient
from shardcore.in_flight import Batch
from shardcore.learning_rates import hyper_parameters
from shardcore.table_plan import PlannedTable

__all__ = ["gradients_of_weights", "read_gradients", "table_updates"]

Gradients = Sequence[NDArray[Any] | None]


def read_gradients(
    features: Sequence[tuple[str, FeatureConfig]],
    planned: Sequence[PlannedTable],
    batch: Batch,
    leaves: Sequence[Any],
    *,
    check: bool,
    keep: bool,
) -> Gradients:
    """Return the gradient of each feature as (bags, dim) of its working dtype, or None.

    Parameters
    ----------
    features : sequence of (path, FeatureConfig)
    planned : sequence of PlannedTable
    batch : Batch
    leaves : sequence
        As the caller gave them, per feature.
    check, keep : bool
        As in `read_gradient`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If one breaks a rule, or its table has no optimizer.
    """
    specs = {table.config: table.spec for table in planned}
    checked = []
    for (path, config), leaf, feature in zip(features, leaves, batch.prepared, strict=True):
        path = "gradients" + path.removeprefix("features")
        spec = specs[config.table]
        if leaf is not None and spec.optimizer is None:
            raise ShardcoreValueError(f"{path} must be None: table {spec.name!r} has no optimizer")
        shape = (*feature.shape, spec.dim)
        value = working_dtype(spec.dtype)
        checked.append(read_gradient(leaf, shape, value, path, check=check, keep=keep))
    return checked


def table_updates(
    planned: Sequence[PlannedTable], batch: Batch, gradients: Gradients, step: int
) -> list[TableUpdate]:
    """Return an update for each table that has a gradient; learning rates are asked for here.

    Parameters
    ----------
    planned : sequence of PlannedTable
    batch : Batch
    gradients : sequence
        From `read_gradients`.
    step : int
        1 for the first batch that the engine applies.
    """
    moving = []
    for table, table_batch in zip(planned, batch.tables, strict=True):
        own = tuple(gradients[at] for at in table.features)
        optimizer = table.spec.optimizer
        if optimizer is not None and any(gradient is not None for gradient in own):
            moving.append((table_batch, own, optimizer))
    # By identity first: to hash an optimizer takes all of its parameters, for every table.
    optimizers = {id(optimizer): optimizer for *_, optimizer in moving}
    values = hyper_parameters(optimizers.values())
    hyper = {key: values[optimizer] for key, optimizer in optimizers.items()}
    return [
        TableUpdate(table_batch, own, hyper[id(optimizer)], step)
        for table_batch, own, optimizer in moving
    ]


def gradients_of_weights(
    planned: Sequence[PlannedTable],
    batch: Batch,
    updates: Sequence[TableUpdate],
    backend: Backend,
) -> list[NDArray[Any] | None]:
    """Return the gradient of each feature's weights; None without weights or without a gradient.

    Parameters
    ----------
    planned : sequence of PlannedTable
    batch : Batch
    updates : sequence of TableUpdate
        From `table_updates`, not applied yet.
    backend : Backend
    """
    found: list[NDArray[Any] | None] = [None] * len(batch.prepared)
    by_name = {update.batch.table: update for update in updates}
    for table in planned:
        update = by_name.get(table.spec.name)
        if update is None:
            continue
        for at, dots in zip(table.features, backend.weight_dots(update), strict=True):
            if dots is not None:
                found[at] = batch.prepared[at].weight_gradient(table.config.combiner, dots)
    return found

"""From the gradients that a caller gives to one update per table, and back to those of weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import Backend
from shardcore.batch import TableUpdate
from shardcore.errors import ShardcoreValueError
from shardcore.feature_input import PlannedFeature, device_gradient, read_gradient
from shardcore.in_flight import Batch
from shardcore.learning_rates import hyper_parameters
from shardcore.table_plan import PlannedTable

__all__ = ["Gradients", "gradients_of_weights", "read_gradients", "table_updates"]

_SMALL: Final = 1 << 14
"""Elements of a gradient that is copied to be tested together with others."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradients of a batch, per feature.

    Attributes
    ----------
    values : list of (array, shape (bags, dim), or None)
        NumPy arrays of the working dtype; or arrays of the backend's kind, of their own dtype.
    unchecked : list of (str or None)
        The path of a gradient whose values the backend has to test; else None.
    """

    values: list[Any]
    unchecked: list[str | None]


def read_gradients(
    features: Sequence[PlannedFeature],
    batch: Batch,
    leaves: Sequence[Any],
    backend: Backend,
    *,
    check: bool,
    keep: bool,
) -> Gradients:
    """Return the gradient of each feature, those that a backend does not take read and cast.

    Parameters
    ----------
    features : sequence of PlannedFeature
    batch : Batch
    leaves : sequence
        As the caller gave them, per feature.
    backend : Backend
    check, keep : bool
        As in `read_gradient`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If one breaks a rule, or its table has no optimizer.
    """
    values: list[Any] = []
    unchecked: list[str | None] = [None] * len(features)
    small: list[NDArray[Any]] = []  # tested all at once
    takes = backend.takes_gradient
    for at, (feature, leaf, prepared) in enumerate(
        zip(features, leaves, batch.prepared, strict=True)
    ):
        if leaf is None:
            values.append(None)
            continue
        path, spec = feature.gradient_path, feature.spec
        if spec.optimizer is None:
            raise ShardcoreValueError(f"{path} must be None: table {spec.name!r} has no optimizer")
        shape = (*prepared.shape, spec.dim)
        if takes(leaf):
            values.append(device_gradient(leaf, shape, path))
            unchecked[at] = path if check else None
            continue
        later = check and prepared.bags.num_bags * spec.dim <= _SMALL
        gradient = read_gradient(leaf, shape, feature.value, path, check and not later, keep)
        values.append(gradient)
        if later and gradient is not None:
            small.append(gradient.reshape(-1))
    if small and not np.isfinite(np.concatenate(small)).all():
        for feature, leaf, prepared in zip(features, leaves, batch.prepared, strict=True):
            if leaf is not None and not takes(leaf):  # raises for one of them
                shape = (*prepared.shape, feature.spec.dim)
                read_gradient(leaf, shape, feature.value, feature.gradient_path)
    return Gradients(values, unchecked)


def table_updates(
    planned: Sequence[PlannedTable], batch: Batch, gradients: Gradients, step: int
) -> list[TableUpdate]:
    """Return an update for each table that has a gradient; learning rates are asked for here.

    Parameters
    ----------
    planned : sequence of PlannedTable
    batch : Batch
    gradients : Gradients
        From `read_gradients`.
    step : int
        1 for the first batch that the engine applies.
    """
    moving = []
    for table, table_batch in zip(planned, batch.tables, strict=True):
        optimizer = table.spec.optimizer
        if optimizer is None:
            continue
        own = tuple([gradients.values[at] for at in table.features])
        for gradient in own:
            if gradient is not None:
                moving.append((table, table_batch, own, optimizer))
                break
    # By identity first: to hash an optimizer takes all of its parameters, for every table.
    optimizers = {id(optimizer): optimizer for *_, optimizer in moving}
    values = hyper_parameters(optimizers.values())
    hyper = {key: values[optimizer] for key, optimizer in optimizers.items()}
    tested = any(gradients.unchecked)
    updates = []
    for table, table_batch, own, optimizer in moving:
        unchecked: tuple[str | None, ...] = ()
        shapes: tuple[tuple[int, ...], ...] = ()
        if tested:
            unchecked = tuple([gradients.unchecked[at] for at in table.features])
            dim = table.spec.dim
            shapes = tuple([(*batch.prepared[at].shape, dim) for at in table.features])
        updates.append(TableUpdate(table_batch, own, hyper[id(optimizer)], step, unchecked, shapes))
    return updates


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

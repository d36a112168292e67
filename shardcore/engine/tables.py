"""The tables of an engine: their order, names, seeds and optimizers, from the features alone.

Order is that of first appearance in the flattened features; unnamed tables are called ``table_0``,
``table_1``, … by their place in it. The same features give the same plan in every process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardcore.backend.base import Backend
from shardcore.backend.messages import TableSpec
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig, table_names
from shardcore.initializers.base import derived_seed
from shardcore.initializers.constants import FromArray
from shardcore.initializers.distributions import TruncatedNormal
from shardcore.initializers.filling import as_initializer
from shardcore.optimizer.base import Optimizer
from shardcore.plugins.registry import get_backend

__all__ = ["PlannedTable", "plan_tables", "chosen_backend", "laid_out"]


@dataclass(frozen=True, eq=False)
class PlannedTable:
    """A table of an engine.

    Attributes
    ----------
    config : TableConfig
        The caller's, untouched.
    spec : TableSpec
        The table as a backend creates it.
    named : bool
        Whether the caller named it; automatic names mean nothing to another set of tables.
    features : tuple of int
        Which of the flattened features use it.
    """

    config: TableConfig
    spec: TableSpec
    named: bool
    features: tuple[int, ...]


def plan_tables(
    features: Sequence[tuple[str, FeatureConfig]], optimizer: Optimizer | None, seed: int
) -> list[PlannedTable]:
    """Return the tables of features, in the order of their first appearance.

    Parameters
    ----------
    features : sequence of (path, FeatureConfig)
    optimizer : Optimizer or None
        For the tables that have none of their own.
    seed : int

    Raises
    ------
    ShardcoreValueError
        If two tables have one name, or one is named as a slot of another; if a slot begins from an
        array of another shape.

    Examples
    --------
    >>> user, item = TableConfig(10, 4, name="user"), TableConfig(20, 4)
    >>> features = [("f[0]", FeatureConfig(item)), ("f[1]", FeatureConfig(user))]
    >>> [table.spec.name for table in plan_tables(features, None, 0)]
    ['table_0', 'user']
    """
    users: dict[TableConfig, list[int]] = {}
    for at, (_, feature) in enumerate(features):
        users.setdefault(feature.table, []).append(at)
    planned: list[PlannedTable] = []
    for config, name in table_names(features).items():
        chosen = config.optimizer if config.optimizer is not None else optimizer
        shape, dtype = (config.vocabulary_size, config.dim), np.dtype(config.dtype)
        initializer = config.initializer if config.initializer is not None else TruncatedNormal()
        spec = TableSpec(
            name=name,
            num_rows=config.vocabulary_size,
            dim=config.dim,
            dtype=dtype,
            initializer=as_initializer(initializer, shape, dtype),
            seed=derived_seed(seed, name),
            optimizer=chosen,
            layout="div" if config.layout is None else config.layout,  # see laid_out
            placement=config.placement,
            exchange=config.exchange,
            quantization=config.quantization_config,
            max_norm=config.max_norm,
        )
        planned.append(PlannedTable(config, spec, config.name is not None, tuple(users[config])))
    _check_slot_names(planned)
    _check_slot_arrays(planned)
    return planned


def _check_slot_names(planned: Sequence[PlannedTable]) -> None:
    names = {table.spec.name for table in planned}
    for table in planned:
        for slot in table.spec.slots:
            if f"{table.spec.name}/{slot.name}" in names:
                raise ShardcoreValueError(
                    f"no table may be named '{table.spec.name}/{slot.name}': checkpoints call "
                    f"slot {slot.name!r} of table {table.spec.name!r} so"
                )


def _check_slot_arrays(planned: Sequence[PlannedTable]) -> None:
    for spec in (table.spec for table in planned):
        for slot in spec.slots:
            shape = slot.shape(spec.num_rows, spec.dim)
            if isinstance(slot.fill, FromArray) and slot.fill.array.shape != shape:
                raise ShardcoreValueError(
                    f"initial values of slot {slot.name!r} of table {spec.name!r} must have the "
                    f"slot's shape {shape}, got an array of shape {slot.fill.array.shape}"
                )


def chosen_backend(
    backend: str | Backend | None,
    options: Mapping[str, Any] | None,
    planned: Sequence[PlannedTable],
) -> Backend:
    """Return the backend of an engine.

    Parameters
    ----------
    backend : str, Backend or None
        None: the registry's default.
    options : mapping or None
        Of a backend given by name.
    planned : sequence of PlannedTable
        The tables it will be asked for.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or the backend cannot have such a table.
    UnknownPluginError, BrokenPluginError, UnavailableError
        If it is unknown, cannot be loaded, or cannot run here.

    Examples
    --------
    >>> chosen_backend("cpu", None, []).name
    'cpu'
    """
    made = _made(backend, options)
    for table in planned:
        made.check_table(table.spec)
        if table.config.combiner == "max" and made.process_group is not None:
            raise ShardcoreValueError(
                f"table {table.spec.name!r} must have another combiner than 'max' on backend "
                f"{made.name!r}: several processes hold its tables together, and none has all rows "
                "of a bag"
            )
    return made


def laid_out(planned: Sequence[PlannedTable], backend: Backend) -> list[PlannedTable]:
    """Return tables with the backend's default layout where the user gave none.

    Parameters
    ----------
    planned : sequence of PlannedTable
    backend : Backend
        The engine's.
    """
    return [
        replace(table, spec=replace(table.spec, layout=backend.default_layout(table.spec)))
        if table.config.layout is None
        else table
        for table in planned
    ]


def _made(backend: str | Backend | None, options: Mapping[str, Any] | None) -> Backend:
    if options is not None and not isinstance(options, Mapping):
        raise ShardcoreTypeError(f"backend_options must be a mapping, got {options!r}")
    if isinstance(backend, Backend):
        if options:
            raise ShardcoreValueError(
                f"backend_options {dict(options)} are for a backend given by name, "
                f"got a backend {backend.name!r}"
            )
        return backend
    if backend is not None and not isinstance(backend, str):
        raise ShardcoreTypeError(f"backend must be a name or a Backend, got {backend!r}")
    for key in options or {}:
        if not isinstance(key, str):
            raise ShardcoreTypeError(f"backend_options must have strings as keys, got {key!r}")
        if key == "name":
            raise ShardcoreValueError("backend_options must not hold 'name': backend is the name")
    return get_backend(backend, **(options or {}))

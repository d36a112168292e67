"""Features looked up in tables that a caller holds: what an engine answers, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.max_norm import scaled_to_norm
from shardcore.backend.messages import FeatureBags
from shardcore.dtypes import TABLE_DTYPES, working_dtype
from shardcore.errors import ShardcoreError, ShardcoreTypeError, ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig, table_names
from shardcore.features.frames import read_frames
from shardcore.features.planned import FeatureInput
from shardcore.features.prepare import prepare_feature
from shardcore.features.structure import (
    entries_of,
    entries_of_kind,
    flatten,
    flatten_like,
    is_feature,
    unflatten,
    with_entries,
)
from shardcore.lookup.lookup import as_row_store, bag_blocks
from shardcore.store.bag_max import max_of_bags
from shardcore.store.segment_reduce import reduce_bags
from shardcore.variable.row_store import RowStore

__all__ = ["combine_bags", "serving_embedding_lookup"]


def serving_embedding_lookup(
    inputs: Any, weights: Any, tables: Mapping[Any, Any], feature_config: Any
) -> Any:
    """Look features up in given tables, as an engine with these tables would, to the last bit.

    Parameters
    ----------
    inputs : the structure of `feature_config`, or a part of it
        Leaves in any form that `ShardedEmbedding` takes. A feature is left out by leaving its key
        out of a mapping, or by None in a list, tuple, named tuple or dataclass. A data frame may
        stand for a dict of features: it has those of whose names it has columns.
    weights : the same structure or a part of it, or None
        Leaves None, a `Ragged` or `Sparse` of numbers, an array, or an Arrow column, for features
        that are in `inputs`; where these come as a data frame, also the name of a column of it.
    tables : mapping of TableConfig or table name to ShardedVariable, array, or list of arrays
        Each (vocabulary_size, dim), of a dtype that is combined in the same type as the
        configured one: float64 for float64, else any of the others. A list holds consecutive
        ranges of rows; a variable carries its own layout. Tables are not copied. Only those that
        `inputs` need have to be there. An automatic name such as ``"table_0"`` counts only if
        the names are exactly those of all tables of `feature_config`.
    feature_config : FeatureConfig, or nested dicts, lists, tuples, … of them

    Returns
    -------
    the part of the structure that `inputs` have
        Per feature an ndarray of float32 (float64 for float64 tables): (*batch shape, dim), or
        (*batch shape, max_sequence_length, dim) for a sequence. None where `inputs` have None.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
        If an input breaks a rule, is not configured, or its table is missing or does not fit; the
        message begins with its path.

    Notes
    -----
    A table's `max_norm` and `quantization_config` are honoured: rows are scaled down to the norm,
    and rounded to the buckets, before they are combined.

    Examples
    --------
    >>> user = TableConfig(3, 2, combiner="sum", name="user")
    >>> config = {"clicks": FeatureConfig(user), "friends": FeatureConfig(user)}
    >>> tables = {"user": np.array([[1, 2], [3, 4], [5, 6]], np.float32)}
    >>> serving_embedding_lookup({"clicks": [[0, 2], []]}, None, tables, config)
    {'clicks': array([[6., 8.],
           [0., 0.]], dtype=float32)}
    """
    names = table_names(flatten(feature_config, what="feature_config"))
    inputs, weights = read_frames(feature_config, inputs, weights, "inputs", partial=True)
    asked = _part_asked(feature_config, inputs, "inputs")
    features = flatten(asked, _is_leaf, "inputs")
    leaves = flatten_like(asked, inputs, "inputs", _is_leaf)
    weight_leaves = _weight_leaves(feature_config, weights, {path for path, _ in features})
    stores = _stores(tables, features, names)
    prepared = [
        None
        if feature is None
        else prepare_feature(
            FeatureInput(feature, path, f"weights{place}", names[feature.table]),
            leaf,
            weight_leaves.get(place),
        )
        for (path, feature), leaf in zip(features, leaves, strict=True)
        for place in (path.removeprefix("inputs"),)
    ]
    found: list[NDArray[Any] | None] = []
    for (_, feature), ready in zip(features, prepared, strict=True):
        if feature is None or ready is None:
            found.append(None)
            continue
        table = feature.table
        out = np.empty((ready.bags.num_bags, table.dim), working_dtype(np.dtype(table.dtype)))
        combine_bags(stores[table], ready.bags, out, _as_seen(table))
        if ready.max_splits is not None:
            out, _ = max_of_bags(out, ready.max_splits)
        found.append(out.reshape(*ready.shape, table.dim))
    return unflatten(asked, found, _is_leaf)


def combine_bags(
    store: RowStore,
    bags: FeatureBags,
    out: NDArray[Any],
    as_seen: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
) -> None:
    """Write the combined rows of each bag, in the working dtype; ids are checked.

    Rows that kernels can read are read where they lie; others are gathered, a few MiB at a time.

    Parameters
    ----------
    store : RowStore
        Of a table dtype.
    bags : FeatureBags
    out : ndarray of the working dtype, shape (bags, elements of a row), C-contiguous
    as_seen : callable, optional
        Applied to rows, (n, elements of a row), before they are combined.

    Examples
    --------
    >>> from shardcore.variable import ShardedVariable
    >>> table = ShardedVariable([np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])])
    >>> out = np.empty((1, 2))
    >>> combine_bags(table.store, FeatureBags(np.array([0, 1]), np.array([0, 2])), out)
    >>> out
    array([[4., 6.]])
    """
    dim = out.shape[1]
    row_splits, weights, divisors = bags.row_splits, bags.weights, bags.divisors
    if as_seen is None and store.combine(bags, out):
        return
    for block in bag_blocks(row_splits, dim * store.dtype.itemsize):
        first, last = int(row_splits[block.start]), int(row_splits[block.stop])
        rows = store.gather(bags.ids[first:last].astype(np.int64, copy=False))
        rows = rows.reshape(last - first, dim)
        if as_seen is not None:
            rows = as_seen(rows)
        reduce_bags(
            np.ascontiguousarray(rows),
            np.arange(last - first, dtype=np.int64),
            row_splits[block.start : block.stop + 1] - first,
            None if weights is None else weights[first:last],
            None if divisors is None else divisors[block],
            out[block],
        )


def _as_seen(table: TableConfig) -> Callable[[NDArray[Any]], NDArray[Any]] | None:
    """Return what an engine's lookup does to rows before it combines them."""
    norm, quantization = table.max_norm, table.quantization_config
    if norm is None:
        return None if quantization is None else quantization.apply

    def as_seen(rows: NDArray[Any]) -> NDArray[Any]:
        rows = scaled_to_norm(rows, norm)
        return rows if quantization is None else quantization.apply(rows)

    return as_seen


def _is_leaf(value: object) -> bool:
    return value is None or is_feature(value)


def _part_asked(config: Any, given: Any, what: str) -> Any:
    """Return the part of a feature configuration that `given` has, None for what it leaves out."""
    if is_feature(config):
        return config
    entries = {key: entry for key, _, entry in entries_of_kind(config, given, what)}
    configured = entries_of(config, what)
    known = {key for key, _, _ in configured}
    for key, suffix, _ in entries_of(given, what):
        if key not in known:
            keys = ", ".join(suffix for _, suffix, _ in configured) or "no entry"
            raise ShardcoreValueError(
                f"{what}{suffix} is not configured: feature_config has {keys} there"
            )
    if isinstance(config, Mapping):
        return {
            key: _part_asked(entry, entries[key], what + suffix)
            for key, suffix, entry in configured
            if key in entries
        }
    parts = []
    for key, suffix, entry in configured:
        if key not in entries:
            raise ShardcoreValueError(f"{what}{suffix} is missing: give None to leave it out")
        left_out = entries[key] is None
        parts.append(None if left_out else _part_asked(entry, entries[key], what + suffix))
    return with_entries(config, parts)


def _weight_leaves(feature_config: Any, weights: Any, given: set[str]) -> dict[str, Any]:
    """Return the weights by the paths of their features, without the name in front."""
    if weights is None:
        return {}
    weighted = _part_asked(feature_config, weights, "weights")
    paths = [path for path, _ in flatten(weighted, _is_leaf, "")]
    leaves = flatten_like(weighted, weights, "weights", _is_leaf)
    found = {path: leaf for path, leaf in zip(paths, leaves, strict=True) if leaf is not None}
    for path in found:
        if f"inputs{path}" not in given:
            raise ShardcoreValueError(f"weights{path} has no ids: inputs{path} is left out")
    return found


def _stores(
    tables: Mapping[Any, Any],
    features: list[tuple[str, FeatureConfig | None]],
    names: dict[TableConfig, str],
) -> dict[TableConfig, RowStore]:
    """Return the rows of each table that the features need, checked against its configuration."""
    if not isinstance(tables, Mapping):
        raise ShardcoreTypeError(f"tables must be a mapping, got {type(tables).__name__}")
    for key in tables:
        if not isinstance(key, str | TableConfig):
            raise ShardcoreTypeError(
                f"tables must have TableConfigs or names of tables as keys, got {key!r}"
            )
    stores: dict[TableConfig, RowStore] = {}
    for path, feature in features:
        if feature is None or feature.table in stores:
            continue
        config = feature.table
        key = _key_of(tables, config, names, path)
        where = f"tables[{names[config]!r}]"
        stores[config] = _checked_store(tables[key], config, where)
    return stores


def _key_of(
    tables: Mapping[Any, Any], config: TableConfig, names: dict[TableConfig, str], path: str
) -> TableConfig | str:
    name = names[config]
    if config in tables:
        if name in tables:
            raise ShardcoreValueError(
                f"tables must have table {name!r} once, got it by its TableConfig and by its name"
            )
        return config
    if name not in tables:
        given = ", ".join(map(repr, tables)) or "none"
        hint = ""
        if any(isinstance(key, TableConfig) and key.name == config.name for key in tables):
            hint = "; a TableConfig is equal only to itself"
        raise ShardcoreValueError(
            f"{path} needs table {name!r}, which tables must have: it has {given}{hint}"
        )
    if config.name is None and set(tables) != set(names.values()):
        raise ShardcoreValueError(
            f"{path} needs a table with the automatic name {name!r}, which means nothing to "
            f"another set of tables: tables has {', '.join(map(repr, tables))}, feature_config "
            f"{', '.join(map(repr, names.values()))}; name the table or give it by its TableConfig"
        )
    return name


def _checked_store(params: Any, config: TableConfig, where: str) -> RowStore:
    if config.layout == "mod" and isinstance(params, list | tuple) and len(params) > 1:
        raise ShardcoreValueError(
            f"{where} must be a ShardedVariable or one array, got {len(params)} shards: its layout "
            'is "mod", and the shards of a list hold consecutive rows'
        )
    try:
        store = as_row_store(params, None)
    except ShardcoreError as error:
        raise type(error)(f"{where}: {error}") from error
    shape = (store.layout.num_rows, *store.row_shape)
    if shape != (config.vocabulary_size, config.dim):
        raise ShardcoreValueError(
            f"{where} must have shape {(config.vocabulary_size, config.dim)}, got {shape}"
        )
    value = working_dtype(np.dtype(config.dtype))
    fits = [name for name in TABLE_DTYPES if (name == "float64") == (value == np.float64)]
    if store.dtype.name not in fits or not store.dtype.isnative:
        raise ShardcoreTypeError(
            f"{where} must be {' or '.join(fits)}, as its configuration is combined in {value}, "
            f"got dtype {store.dtype}"
        )
    return store

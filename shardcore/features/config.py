"""The configuration of tables and features: plain records, checked once, when they are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shardcore.backend.capabilities import EXCHANGES, PLACEMENTS
from shardcore.backend.max_norm import as_max_norm
from shardcore.backend.quantization import QuantizationConfig
from shardcore.dtypes import table_dtype, working_dtype
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, shown
from shardcore.ids.arrow import Nulls
from shardcore.ids.hashing import Hash
from shardcore.initializers.foreign import own_initializer
from shardcore.optimizer.base import Optimizer
from shardcore.validation.arrays import as_floats, read_array
from shardcore.validation.shapes import as_count, as_shape, check_addressable

__all__ = ["FeatureConfig", "InvalidIds", "TableConfig", "table_names"]

InvalidIds: TypeAlias = Literal["raise", "drop", "zero", "clip"] | int

_LAYOUTS: Final = ("div", "mod")
_COMBINERS: Final = ("mean", "sum", "sqrtn", "max")
_INVALID_IDS: Final = ("raise", "drop", "zero", "clip")
_NULLS: Final = ("raise", "drop")
_MAX_ROWS: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False, repr=False)
class TableConfig:
    """One embedding table. Equal only to itself: two tables may well be configured alike.

    Parameters
    ----------
    vocabulary_size : int, >= 1
        Number of rows.
    dim : int, >= 1
        Number of columns.
    initializer : callable or array of shape (vocabulary_size, dim), optional
        A callable is asked in blocks of rows; see `shardcore.initializers`. One of Keras,
        TensorFlow or JAX becomes ours of its distribution, or is refused. None:
        ``TruncatedNormal(mean=0, stddev=1/sqrt(dim))``.
    optimizer : Optimizer, optional
        None: the engine's.
    combiner : {"mean", "sum", "sqrtn", "max"}
        How the rows of a bag become one vector, with weights w: sum Σw·e, mean Σw·e/Σw, sqrtn
        Σw·e/√Σw². max: the greatest value of each column, without weights, as torch's
        ``EmbeddingBag``: an empty bag gives zeros, a NaN counts only in the bag's first row, and
        the gradient goes to the first row that has the value. Every id of the bag still counts as
        named: its row is updated, by a gradient of zeros. Activations are then NumPy arrays on
        every backend; not where several processes hold the tables together.
    name : str, optional
        Its name in checkpoints. None: the engine chooses one.
    dtype : dtype
        float32, float64, float16 or bfloat16. Kept as ``np.dtype``.
    quantization_config : QuantizationConfig, optional
        None: rows are used as they are stored.
    layout : {"div", "mod"} or sequence of int >= 0, optional
        Which shard has which row: contiguous ranges as even as can be, row modulo shards, or
        contiguous ranges of these row counts, one per host of the backend, that sum to
        `vocabulary_size`. A backend of one host takes any. None: "div", unless the backend is
        better off with "mod", as one of many devices is, where frequent rows are neighbours; then
        a view's `layout` says so.
    placement : {"row", "table", "column", "replicated"}
        The parts that are spread over hosts: rows, none (the table is on one host), columns, or
        none (every host has it).
    exchange : {"exact", "partial"}
        Whether hosts exchange rows, so that sums have one order everywhere, or partial sums.
    max_norm : float, > 0 and finite, optional
        Lookups see rows whose L2 norm is greater scaled down to it, as TensorFlow's
        ``max_norm`` does, before they round and combine them. Stored rows stay as they are, in
        views and checkpoints too, and gradients pass straight through: a row's update is that of
        a table without `max_norm`. The modules of `shardcore.torch` scale the stored rows instead,
        as torch does. Not with placement "column" and exchange "partial".

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule.

    Examples
    --------
    >>> TableConfig(1000, 16, combiner="sum", name="user")
    TableConfig(1000, 16, combiner='sum', name='user')

    Three hosts, the second without rows; the greatest values of bags of rows no longer than 1:

    >>> TableConfig(8, 2, combiner="max", layout=[3, 0, 5], max_norm=1.0)
    TableConfig(8, 2, combiner='max', layout=(3, 0, 5), max_norm=1.0)
    """

    vocabulary_size: int
    dim: int
    initializer: Callable[..., Any] | NDArray[Any] | None = None
    optimizer: Optimizer | None = None
    combiner: Literal["mean", "sum", "sqrtn", "max"] = "mean"
    name: str | None = None
    dtype: DTypeLike = "float32"
    quantization_config: QuantizationConfig | None = None
    layout: Literal["div", "mod"] | Sequence[int] | None = None
    placement: Literal["row", "table", "column", "replicated"] = "row"
    exchange: Literal["exact", "partial"] = "exact"
    max_norm: float | None = None

    def __post_init__(self) -> None:
        rows = as_count(self.vocabulary_size, "vocabulary_size")
        if rows > _MAX_ROWS:
            raise ShardcoreValueError(f"vocabulary_size must fit into int64, got {rows}")
        dim = as_count(self.dim, "dim")
        dtype = table_dtype(self.dtype)
        for argument, allowed in (
            ("combiner", _COMBINERS),
            ("placement", PLACEMENTS),
            ("exchange", EXCHANGES),
        ):
            _check_choice(getattr(self, argument), argument, allowed)
        _check_name(self.name)
        table = "the table" if self.name is None else f"table {self.name!r}"
        check_addressable((rows, dim), dtype, table)
        if self.optimizer is not None and not isinstance(self.optimizer, Optimizer):
            raise ShardcoreTypeError(
                f"optimizer must be an Optimizer or None, got {shown(self.optimizer)}"
                f"{_hint_at_instance(self.optimizer)}"
            )
        _check_quantization(self.quantization_config, dtype)
        object.__setattr__(self, "max_norm", as_max_norm(self.max_norm))
        object.__setattr__(self, "initializer", _as_initializer(self.initializer, (rows, dim)))
        object.__setattr__(self, "layout", _as_layout(self.layout, rows))
        object.__setattr__(self, "vocabulary_size", rows)
        object.__setattr__(self, "dim", dim)
        object.__setattr__(self, "dtype", dtype)

    def __repr__(self) -> str:
        return _shown(self, positional=2)


@dataclass(frozen=True, eq=False, repr=False)
class FeatureConfig:
    """One feature: ids that are looked up in a table. Equal only to itself.

    Parameters
    ----------
    table : TableConfig
        The table; features may share one.
    max_sequence_length : int, >= 0
        0: a bag's rows are combined to one vector. Else the feature is a sequence: its rows are
        not combined but padded with zeros, or truncated, to this length.
    output_shape : sequence of int >= 0, optional
        Shape of the activations without their last axis. None: that of the batch.
    invalid_ids : {"raise", "drop", "zero", "clip"} or int
        The policy for an id outside of the table: an error; left out, its weight too; a row of
        zeros, its weight stays; the nearest row; or this row of the table.
    name : str, optional
    nulls : {"raise", "drop"} or int
        The policy for nulls, where ids come as an Arrow column (pyarrow, polars, pandas): an error;
        a null id is left out; or it is this row of the table. A null list is an error with "raise",
        else an empty bag.
    hash : Hash, optional
        What gives the rows of the ids, which may then be strings, or integers of any 64 bits. Its
        buckets are rows of the table, so no id is invalid; rows beyond them are for `nulls`, say.
        None: ids are rows.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule.

    Examples
    --------
    >>> FeatureConfig(TableConfig(1000, 16, name="user"), invalid_ids="drop")
    FeatureConfig(TableConfig(1000, 16, name='user'), invalid_ids='drop')
    """

    table: TableConfig
    max_sequence_length: int = 0
    output_shape: Sequence[int] | None = None
    invalid_ids: InvalidIds = "raise"
    name: str | None = None
    nulls: Nulls = "raise"
    hash: Hash | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.table, TableConfig):
            raise ShardcoreTypeError(
                f"table must be a TableConfig, got {shown(self.table)}"
                f"{_hint_at_instance(self.table)}"
            )
        length = as_count(self.max_sequence_length, "max_sequence_length", 0)
        object.__setattr__(self, "max_sequence_length", length)
        if self.output_shape is not None:
            shape = as_shape(self.output_shape, "output_shape")
            object.__setattr__(self, "output_shape", shape)
        for argument, allowed in (("invalid_ids", _INVALID_IDS), ("nulls", _NULLS)):
            policy = _as_policy(getattr(self, argument), argument, allowed, self.table)
            object.__setattr__(self, argument, policy)
        _check_name(self.name)
        _check_hash(self.hash, self.table)

    def __repr__(self) -> str:
        return _shown(self, positional=1)


def _check_choice(value: object, argument: str, allowed: tuple[str, ...]) -> None:
    rule = f"{argument} must be one of {', '.join(map(repr, allowed))}, got {shown(value)}"
    if not isinstance(value, str):
        raise ShardcoreTypeError(rule)
    if value not in allowed:
        raise ShardcoreValueError(rule)


def _as_layout(layout: object, rows: int) -> str | tuple[int, ...] | None:
    if layout is None:
        return None
    rule = (
        f"layout must be one of {', '.join(map(repr, _LAYOUTS))} or a sequence of row counts, "
        f"got {shown(layout)}"
    )
    if isinstance(layout, str):
        if layout not in _LAYOUTS:
            raise ShardcoreValueError(rule)
        return layout
    if isinstance(layout, bytes) or not isinstance(layout, Sequence | np.ndarray):
        raise ShardcoreTypeError(rule)
    sizes = tuple(as_count(size, f"layout[{at}]", 0) for at, size in enumerate(layout))
    if sum(sizes) != rows:
        raise ShardcoreValueError(
            f"layout must have row counts that sum to vocabulary_size = {rows}, "
            f"got {shown(sizes)}, which sum to {sum(sizes)}"
        )
    return sizes


def _check_name(name: object) -> None:
    if not isinstance(name, str | None):
        raise ShardcoreTypeError(f"name must be a string or None, got {shown(name)}")
    if name == "":
        raise ShardcoreValueError("name must not be empty")
    try:
        (name or "").encode()
    except UnicodeEncodeError as error:
        raise ShardcoreValueError(
            f"name must be valid Unicode, got {name!r}, whose position {error.start} is none"
        ) from error


def _check_quantization(config: object, dtype: np.dtype[Any]) -> None:
    if config is None:
        return
    if not isinstance(config, QuantizationConfig):
        raise ShardcoreTypeError(
            f"quantization_config must be a QuantizationConfig or None, got {shown(config)}"
        )
    working = working_dtype(dtype)
    limits = np.finfo(working)
    largest = max(abs(config.lower), abs(config.upper), config.upper - config.lower)
    if largest > float(limits.max) or config.step < float(limits.tiny):
        raise ShardcoreValueError(
            f"quantization_config must have bounds and a step that {working} can hold, "
            f"got {shown(config)}"
        )


def _as_initializer(
    initializer: Any, shape: tuple[int, int]
) -> Callable[..., Any] | NDArray[Any] | None:
    if isinstance(initializer, type):
        raise ShardcoreTypeError(
            f"initializer must be a callable or an array, got {shown(initializer)}"
            f"{_hint_at_instance(initializer)}"
        )
    if initializer is None:
        return None
    if callable(initializer):
        function: Callable[..., Any] = own_initializer(initializer, shape)
        return function
    array = read_array(initializer, "initializer")
    if array.shape != shape:
        raise ShardcoreValueError(
            f"initializer must have the table's shape {shape}, got shape {array.shape}"
        )
    as_floats(array[:0], "initializer")  # its dtype; the array itself is not copied
    return array


def _as_policy(
    policy: object, argument: str, allowed: tuple[str, ...], table: TableConfig
) -> str | int:
    rows = table.vocabulary_size
    rule = f"{argument} must be one of {', '.join(map(repr, allowed))} or a row in [0, {rows})"
    if isinstance(policy, str):
        if policy not in allowed:
            raise ShardcoreValueError(f"{rule}, got {shown(policy)}")
        return policy
    if isinstance(policy, bool) or not isinstance(policy, int | np.integer):
        raise ShardcoreTypeError(f"{rule}, got {shown(policy)}")
    if not 0 <= policy < rows:
        raise ShardcoreValueError(f"{rule}, got {policy}")
    return int(policy)


def _check_hash(function: object, table: TableConfig) -> None:
    if function is None:
        return
    if not isinstance(function, Hash):
        raise ShardcoreTypeError(
            f"hash must be a Hash or None, got {shown(function)}{_hint_at_instance(function)}"
        )
    if function.buckets > table.vocabulary_size:
        raise ShardcoreValueError(
            f"hash must have no more buckets than the table has rows, {table.vocabulary_size}, "
            f"got {function}"
        )


def _hint_at_instance(value: object) -> str:
    return f"; write {value.__name__}(...)" if isinstance(value, type) else ""


def _shown(config: Any, positional: int) -> str:
    """Return the call that makes `config`, without the arguments left at their defaults."""
    parts = []
    for at, field in enumerate(dataclasses.fields(config)):
        value = getattr(config, field.name)
        if at < positional:
            parts.append(repr(value))
        elif field.name == "dtype":
            if value.name != field.default:
                parts.append(f"dtype={value.name!r}")
        elif isinstance(value, np.ndarray):
            parts.append(f"{field.name}=<array {value.shape} {value.dtype}>")
        elif value is not None and value != field.default:
            parts.append(f"{field.name}={shown(value)}")
    return f"{type(config).__name__}({', '.join(parts)})"


def table_names(features: Sequence[tuple[str, FeatureConfig]]) -> dict[TableConfig, str]:
    """Return the name of each table, in the order of their first appearance.

    A table without a name is called ``table_0``, ``table_1``, … by its place in that order. Such a
    name means nothing to another set of tables.

    Parameters
    ----------
    features : sequence of (path, FeatureConfig)
        As `shardcore.features.structure.flatten` returns them.

    Raises
    ------
    ShardcoreValueError
        If two tables have one name.

    Examples
    --------
    >>> user, item = TableConfig(10, 4, name="user"), TableConfig(20, 4)
    >>> features = [("f[0]", FeatureConfig(item)), ("f[1]", FeatureConfig(user))]
    >>> list(table_names(features).values())
    ['table_0', 'user']
    """
    names: dict[TableConfig, str] = {}
    first_place: dict[str, str] = {}
    for path, feature in features:
        table = feature.table
        if table in names:
            continue
        name = table.name if table.name is not None else f"table_{len(names)}"
        if name in first_place:
            raise ShardcoreValueError(
                f"tables must have distinct names: {first_place[name]} and {path} "
                f"use different tables named {name!r}"
            )
        first_place[name] = path
        names[table] = name
    return names

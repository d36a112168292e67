"""Many tables at once, with the names of torchrec: one lookup and one update for all of them.

torchrec is not needed: configurations and jagged tensors are read by their attributes, so its own
may be given, or the records here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch

from shardcore.backend.base import Backend
from shardcore.errors import ShardcoreError, ShardcoreTypeError, ShardcoreValueError, shown
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.initializers import FromArray, Uniform
from shardcore.optimizer.base import Optimizer
from shardcore.torch.calls import Bags, ids_of, jagged_parts, read_bags, row_splits_of
from shardcore.torch.compiling import outside_of_graphs
from shardcore.torch.module import EngineModule
from shardcore.torch.tensors import check_place, numpy_dtype

__all__ = [
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "FeatureModule",
    "JaggedTensor",
    "KeyedTensor",
]

_NOTHING: Final = (np.empty(0, np.int64), np.zeros(1, np.int64))
"""No bags: of a feature that a lookup leaves out."""

_COMBINERS: Final = {"SUM": "sum", "MEAN": "mean"}


@dataclass(frozen=True)
class EmbeddingConfig:
    """A table of an `EmbeddingCollection`, and its features.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
    name : str
    feature_names : sequence of str
    dtype : torch.dtype
    init_fn : callable, optional
        Fills the tensor of initial values that it is called with. None: uniform numbers up to
        1 / sqrt(num_embeddings) from 0.

    Examples
    --------
    >>> EmbeddingConfig(1000, 16, "user", ["clicks"]).name
    'user'
    """

    num_embeddings: int
    embedding_dim: int
    name: str
    feature_names: Sequence[str]
    dtype: Any = torch.float32
    init_fn: Any = None


@dataclass(frozen=True)
class EmbeddingBagConfig(EmbeddingConfig):
    """A table of an `EmbeddingBagCollection`, and its features.

    Parameters
    ----------
    num_embeddings, embedding_dim, name, feature_names, dtype, init_fn
        As `EmbeddingConfig`.
    pooling : {"sum", "mean"}

    Examples
    --------
    >>> EmbeddingBagConfig(1000, 16, "user", ["clicks"], pooling="mean").pooling
    'mean'
    """

    pooling: str = "sum"


class KeyedTensor:
    """The activations per feature: by name, or side by side.

    Parameters
    ----------
    tensors : dict of str to tensor, each (batch, dim)

    Examples
    --------
    >>> found = KeyedTensor({"a": torch.ones(2, 1), "b": torch.zeros(2, 2)})
    >>> found["a"].shape, found.values().shape
    (torch.Size([2, 1]), torch.Size([2, 3]))
    """

    def __init__(self, tensors: dict[str, Any]) -> None:
        self._tensors = tensors

    def keys(self) -> list[str]:
        """Return the names."""
        return list(self._tensors)

    def values(self) -> Any:
        """Return all side by side, (batch, sum of dims)."""
        return torch.cat(list(self._tensors.values()), dim=1)

    def to_dict(self) -> dict[str, Any]:
        """Return the tensors by name."""
        return dict(self._tensors)

    def length_per_key(self) -> list[int]:
        """Return the number of columns of each."""
        return [int(one.shape[1]) for one in self._tensors.values()]

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@dataclass(frozen=True, eq=False)
class JaggedTensor:
    """The rows of one feature, in bags.

    Parameters
    ----------
    rows : tensor, shape (ids, dim)
    splits : tensor of int64, shape (bags + 1,)

    Examples
    --------
    >>> JaggedTensor(torch.ones(3, 2), torch.tensor([0, 1, 3])).lengths()
    tensor([1, 2])
    """

    rows: Any
    splits: Any

    def values(self) -> Any:
        """Return the rows."""
        return self.rows

    def offsets(self) -> Any:
        """Return where each bag begins, and where the last one ends."""
        return self.splits

    def lengths(self) -> Any:
        """Return the number of rows of each bag."""
        return self.splits.diff()


@dataclass(frozen=True, eq=False)
class _Table:
    """A table as it was read from a configuration."""

    rows: int
    dim: int
    name: str
    features: tuple[str, ...]
    dtype: Any
    initial: Any
    combiner: Literal["sum", "mean"]


@dataclass(frozen=True, eq=False)
class _Feature:
    """A lookup of one feature in one table."""

    key: str
    name: str
    table: _Table


class _Collection(EngineModule):
    """Base of both."""

    _kind: str

    def __init__(
        self,
        tables: Sequence[Any],
        pooled: bool,
        is_weighted: bool,
        device: Any,
        optimizer: Optimizer | None,
        backend: str | Backend | None,
        update: Literal["backward", "step"],
        frozen: bool,
    ) -> None:
        super().__init__(optimizer, backend, update, frozen)
        check_place(device)
        if not isinstance(tables, Sequence) or isinstance(tables, str) or not tables:
            raise ShardcoreTypeError(
                f"tables must be a list of at least one configuration, got {shown(tables)}"
            )
        if not isinstance(is_weighted, bool):
            raise ShardcoreTypeError(f"is_weighted must be a bool, got {shown(is_weighted)}")
        self._is_weighted, self._pooled = is_weighted, pooled
        self._tables = [_read_table(one, at, pooled) for at, one in enumerate(tables)]
        users: dict[str, int] = {}
        for table in self._tables:
            for feature in table.features:
                users[feature] = users.get(feature, 0) + 1
        self._all = [
            _Feature(name if users[name] == 1 else f"{name}@{table.name}", name, table)
            for table in self._tables
            for name in table.features
        ]
        if is_weighted:
            for at, table in enumerate(self._tables):
                if table.combiner != "sum":
                    raise ShardcoreValueError(
                        f"tables[{at}].pooling must be 'sum' with is_weighted=True, got 'mean'"
                    )
        self._make_engine({table.name: _initial(table) for table in self._tables})

    def _features(self, initial: Mapping[str, Any]) -> dict[str, FeatureConfig]:
        configs = {
            table.name: TableConfig(
                table.rows,
                table.dim,
                initializer=initial.get(table.name),
                combiner=table.combiner,
                name=table.name,
                dtype=numpy_dtype(table.dtype),
            )
            for table in self._tables
        }
        return {one.key: FeatureConfig(configs[one.table.name]) for one in self._all}

    def _prefixes(self) -> dict[str, str]:
        return {table.name: f"{self._kind}.{table.name}." for table in self._tables}

    def _nest(self, leaves: Sequence[Any]) -> dict[str, Any]:
        return {one.key: leaf for one, leaf in zip(self._all, leaves, strict=True)}

    def _flat(self, nested: Any) -> list[Any]:
        return [nested[one.key] for one in self._all]

    def _dtypes(self) -> list[Any]:
        return [table.dtype for table in self._tables]

    def _found(self, leaves: Sequence[Any], weights: Sequence[Any]) -> tuple[Any, ...]:
        return self._look_up(
            leaves,
            weights if any(one is not None for one in weights) else None,
            [one.table.name for one in self._all],
            [one.table.dtype for one in self._all],
            self._updates(),
        )

    def feature(self, key: str) -> FeatureModule:
        """Return a module for one feature, over the same tables.

        For layers that look up for themselves. With ``update="step"`` all of them, and this
        collection, are updated by one `step`. The collection must be part of the model too: it
        holds the tables.

        Parameters
        ----------
        key : str
            A feature, or ``feature@table`` where several tables have it.

        Raises
        ------
        ShardcoreValueError
            If there is none of that name.
        """
        for at, one in enumerate(self._all):
            if one.key == key:
                return FeatureModule(self, at)
        known = ", ".join(repr(one.key) for one in self._all)
        raise ShardcoreValueError(f"key must be one of {known}, got {shown(key)}")

    def _inputs(self, features: Any) -> dict[str, Bags]:
        """Return the bags of every feature that a table asks for."""
        names = dict.fromkeys(one.name for one in self._all)
        if isinstance(features, Mapping):
            missing = [name for name in names if name not in features]
            if missing:
                raise ShardcoreValueError(
                    f"features must hold {missing[0]!r}, got {', '.join(map(repr, features))}"
                )
            return {name: self._pair(features[name], name) for name in names}
        if all(callable(getattr(features, name, None)) for name in ("keys", "values", "lengths")):
            return self._keyed(features, names)
        raise ShardcoreTypeError(
            "features must be a dict of name -> (values, offsets) or a KeyedJaggedTensor, "
            f"got {type(features).__name__}"
        )

    def _pair(self, given: Any, name: str) -> Bags:
        path = f"features[{name!r}]"
        try:
            if isinstance(given, torch.Tensor) and given.is_nested:
                given = jagged_parts(given, "values")
            if isinstance(given, torch.Tensor) and given.dim() == 2:
                ids = ids_of(given, "values")
                return Bags(ids, None, self._weights(None, ids.size))
            if not isinstance(given, tuple) or not 2 <= len(given) <= 3:
                rank = f" of rank {given.dim()}" if isinstance(given, torch.Tensor) else ""
                raise ShardcoreTypeError(
                    "must be (values, offsets), (values, offsets, weights), a tensor of rank 2 or "
                    f"a nested one, got {type(given).__name__}{rank}"
                )
            ids = ids_of(given[0], "values")
            if ids.ndim != 1:
                raise ShardcoreValueError(f"values must be of rank 1, got shape {ids.shape}")
            splits = row_splits_of(given[1], ids.size, include_last=True, of="values")
            weights = self._weights(given[2] if len(given) == 3 else None, ids.size)
            return Bags(ids, splits, weights)
        except ShardcoreError as error:
            raise type(error)(f"{path}: {error}") from None

    def _weights(self, weights: Any, ids: int) -> Any:
        if weights is None:
            if self._is_weighted:
                raise ShardcoreValueError("weights must be given with is_weighted=True, got none")
            return None
        if not self._is_weighted:
            return None  # as torchrec, which passes over them
        if not isinstance(weights, torch.Tensor) or not weights.is_floating_point():
            raise ShardcoreTypeError("weights must be a tensor of floats")
        if tuple(weights.shape) != (ids,):
            raise ShardcoreValueError(
                f"weights must have shape {(ids,)}, one per id, got {tuple(weights.shape)}"
            )
        return weights

    def _keyed(self, features: Any, names: Mapping[str, None]) -> dict[str, Bags]:
        """Read what looks like torchrec's KeyedJaggedTensor: all features, one after the other."""
        keys = list(features.keys())
        missing = [name for name in names if name not in keys]
        if missing:
            raise ShardcoreValueError(
                f"features must hold {missing[0]!r}, got {', '.join(map(repr, keys))}"
            )
        ids = ids_of(features.values(), "features.values()")
        lengths = ids_of(features.lengths(), "features.lengths()")
        if lengths.ndim != 1 or lengths.size % len(keys):
            raise ShardcoreValueError(
                f"features.lengths() must hold as many for each of {len(keys)} keys, "
                f"got {lengths.size}"
            )
        ends = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        if (lengths < 0).any() or ends[-1] != ids.size:
            raise ShardcoreValueError(
                f"features.lengths() must be >= 0 and sum to the number of values, {ids.size}, "
                f"got {ends[-1]}"
            )
        given = getattr(features, "weights_or_none", None)
        weights = self._weights(given() if callable(given) else None, ids.size)
        batch = lengths.size // len(keys)
        found = {}
        for at, key in enumerate(keys):
            if key not in names:
                continue
            splits = ends[at * batch : (at + 1) * batch + 1]
            here = slice(int(splits[0]), int(splits[-1]))
            own = None if weights is None else weights[here]
            found[key] = Bags(ids[here], splits - splits[0], own)
        return found

    def extra_repr(self) -> str:
        """Return the tables, and what updates them."""
        tables = ", ".join(f"{one.name} {one.rows}x{one.dim}" for one in self._tables)
        return f"{tables}; optimizer={self.optimizer!r}"


class FeatureModule(torch.nn.Module):
    """One feature of a collection, called as `EmbeddingBag`, or as `Embedding` where none pools.

    Made by ``collection.feature(key)``.

    Parameters
    ----------
    collection : EmbeddingBagCollection or EmbeddingCollection
    at : int
        Which of its features.

    Examples
    --------
    >>> tables = [EmbeddingBagConfig(10, 4, "user", ["clicks", "likes"])]
    >>> bags = EmbeddingBagCollection(tables)
    >>> bags.feature("clicks")(torch.tensor([[1, 2]])).shape
    torch.Size([1, 4])
    """

    def __init__(self, collection: _Collection, at: int) -> None:
        super().__init__()
        self._collection = (collection,)  # no submodule: its tables are saved where it is one
        self._at = at

    @outside_of_graphs
    def forward(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        """Return the rows of ids, combined per bag where the collection pools.

        Parameters
        ----------
        input, offsets, per_sample_weights
            As of `EmbeddingBag`, without the last offset; or `input` alone, as of `Embedding`.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            If an argument breaks its rule.
        """
        (collection,) = self._collection
        own = collection._all[self._at]
        leaf: Any
        if collection._pooled:
            if per_sample_weights is not None and own.table.combiner != "sum":
                raise ShardcoreValueError(
                    "per_sample_weights must be None with pooling='mean': only 'sum' takes them"
                )
            bags = read_bags(input, offsets, per_sample_weights, include_last=False)
            leaf, own_weights = bags.leaf, bags.weights
        else:
            leaf, own_weights = ids_of(input, "input").reshape(-1), None
        count = len(collection._all)
        leaves = [leaf if at == self._at else _NOTHING for at in range(count)]
        weights = [own_weights if at == self._at else None for at in range(count)]
        rows = collection._found(leaves, weights)[self._at]
        return rows if collection._pooled else rows.reshape(*input.shape, own.table.dim)

    def extra_repr(self) -> str:
        """Return the feature and its table."""
        own = self._collection[0]._all[self._at]
        return f"{own.key!r} of table {own.table.name!r}"


class EmbeddingBagCollection(_Collection):
    """Tables and their features, combined per bag, as torchrec's EmbeddingBagCollection.

    All features are looked up together, and ``backward()`` is one step for all tables.

    Parameters
    ----------
    tables : list of EmbeddingBagConfig
        Or torchrec's: read are ``name``, ``num_embeddings``, ``embedding_dim``, ``feature_names``,
        ``pooling``, and where there are any ``dtype`` and ``init_fn``.
    is_weighted : bool
        Whether features come with a weight per id; with pooling "sum" only.
    device : "cpu" or None
    optimizer, backend, update, _freeze
        As `EmbeddingBag`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule.

    Examples
    --------
    >>> import shardcore as sc
    >>> tables = [EmbeddingBagConfig(10, 4, "user", ["clicks", "likes"])]
    >>> bags = EmbeddingBagCollection(tables, optimizer=sc.optimizers.SGD(0.1))
    >>> one = (torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3]))
    >>> found = bags({"clicks": one, "likes": one})
    >>> found.keys(), found.values().shape
    (['clicks', 'likes'], torch.Size([2, 8]))
    """

    _kind = "embedding_bags"

    def __init__(
        self,
        tables: Sequence[Any],
        is_weighted: bool = False,
        device: Any = None,
        *,
        optimizer: Optimizer | None = None,
        backend: str | Backend | None = None,
        update: Literal["backward", "step"] = "backward",
        _freeze: bool = False,
    ) -> None:
        super().__init__(tables, True, is_weighted, device, optimizer, backend, update, _freeze)

    @outside_of_graphs
    def forward(self, features: Any) -> KeyedTensor:
        """Return the combined rows of each bag, by feature.

        Parameters
        ----------
        features : dict, or a KeyedJaggedTensor
            Per feature ``(values, offsets)``, ``(values, offsets, weights)``, a tensor (bags,
            width) or a nested one; the offsets end with the number of values. Of a
            KeyedJaggedTensor ``keys()``, ``values()``, ``lengths()`` and ``weights_or_none()`` are
            asked.

        Returns
        -------
        KeyedTensor
            A feature of several tables is called ``feature@table``.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            If they break a rule.
        """
        inputs = self._inputs(features)
        leaves = [inputs[one.name].leaf for one in self._all]
        weights = [inputs[one.name].weights for one in self._all]
        found = self._found(leaves, weights)
        return KeyedTensor({one.key: tensor for one, tensor in zip(self._all, found, strict=True)})


class EmbeddingCollection(_Collection):
    """Tables and their features, one row per id, as torchrec's EmbeddingCollection.

    Parameters
    ----------
    tables : list of EmbeddingConfig
        Or torchrec's.
    device, optimizer, backend, update, _freeze
        As `EmbeddingBagCollection`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule.

    Examples
    --------
    >>> words = EmbeddingCollection([EmbeddingConfig(10, 4, "word", ["text"])])
    >>> words({"text": (torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3]))})["text"].values().shape
    torch.Size([3, 4])
    """

    _kind = "embeddings"

    def __init__(
        self,
        tables: Sequence[Any],
        device: Any = None,
        *,
        optimizer: Optimizer | None = None,
        backend: str | Backend | None = None,
        update: Literal["backward", "step"] = "backward",
        _freeze: bool = False,
    ) -> None:
        super().__init__(tables, False, False, device, optimizer, backend, update, _freeze)

    @outside_of_graphs
    def forward(self, features: Any) -> dict[str, JaggedTensor]:
        """Return the rows of each feature, in bags.

        Parameters
        ----------
        features : dict, or a KeyedJaggedTensor
            As of `EmbeddingBagCollection`.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            If they break a rule.
        """
        inputs = {name: bags.in_one_axis() for name, bags in self._inputs(features).items()}
        found = self._found([inputs[one.name][0] for one in self._all], [None] * len(self._all))
        return {
            one.key: JaggedTensor(rows, torch.from_numpy(inputs[one.name][1]))
            for one, rows in zip(self._all, found, strict=True)
        }


def _read_table(config: Any, at: int, pooled: bool) -> _Table:
    def read(name: str, *default: Any) -> Any:
        if isinstance(config, Mapping):
            found = config.get(name, *default) if default else config.get(name)
        else:
            found = getattr(config, name, *default) if default else getattr(config, name, None)
        if found is None and not default:
            raise ShardcoreTypeError(f"tables[{at}] must have {name}, got {shown(config)}")
        return found

    features = read("feature_names")
    if isinstance(features, str) or not all(isinstance(one, str) for one in features):
        raise ShardcoreTypeError(
            f"tables[{at}].feature_names must be a list of names, got {shown(features)}"
        )
    if not features:
        raise ShardcoreValueError(f"tables[{at}].feature_names must hold at least one name")
    combiner: Any = "sum"
    if pooled:
        pooling = read("pooling", "sum")
        combiner = _COMBINERS.get(str(getattr(pooling, "value", pooling)).upper())
        if combiner is None:
            raise ShardcoreValueError(
                f"tables[{at}].pooling must be 'sum' or 'mean', got {shown(pooling)}; for 'max' "
                "there is EmbeddingBag"
            )
    return _Table(
        read("num_embeddings"),
        read("embedding_dim"),
        read("name"),
        tuple(features),
        read("dtype", torch.float32),
        read("init_fn", None),
        combiner,
    )


def _initial(table: _Table) -> Any:
    if table.initial is None:
        limit = 1 / math.sqrt(table.rows)
        return Uniform(-limit, limit)
    rows = torch.empty((table.rows, table.dim), dtype=torch.float32)
    with torch.no_grad():
        table.initial(rows)
    return FromArray(rows.numpy())

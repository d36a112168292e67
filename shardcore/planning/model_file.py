"""A model of embedding tables, described in a TOML file, and the ids of a batch of it.

::

    batch = 65536               # samples of a step, over all hosts or devices
    optimizer = "Adagrad"       # a name of shardcore.optimizers, or "" for lookups only
    ids = "zipf:1.05"           # or "uniform", "reuse:2021", "reuse:2022"
    strategy = "sparsecore"     # of the backend, where it has several; else left out

    [[table]]
    name = "user"
    rows = 40000000
    dim = 128
    hot = 3                     # ids per sample
    # and, where they are not these:
    dtype = "float32"
    layout = "mod"              # "div", unless the backend is better off with "mod"
    placement = "row"
    exchange = "exact"
    optimizer = "Adagrad"       # that of the model

The values of "ids" are those of `shardcore.planning.id_distribution`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shardcore.backend.messages import TableSpec
from shardcore.dtypes import table_dtype
from shardcore.errors import (
    ShardcoreError,
    ShardcoreOSError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.features.config import TableConfig
from shardcore.initializers.constants import Zeros
from shardcore.optimizer.base import Optimizer
from shardcore.planning.id_distribution import IdDistribution
from shardcore.plugins.registry import get_optimizer
from shardcore.validation.shapes import as_count

__all__ = ["Model", "ModelTable", "example_model", "load_model"]

_MODEL_KEYS: Final = ("batch", "optimizer", "ids", "strategy", "table")
_TABLE_KEYS: Final = (
    "name", "rows", "dim", "hot", "dtype", "layout", "placement", "exchange", "optimizer",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ModelTable:
    """One table of a model, that one feature uses.

    Attributes
    ----------
    spec : TableSpec
    hot : int
        Ids per sample.
    layout_given : bool
        Whether the description says the layout; the one in `spec` is "div" where it does not.
    """

    spec: TableSpec
    hot: int
    layout_given: bool = True


@dataclass(frozen=True, eq=False)
class Model:
    """Tables, and how a batch uses them.

    Attributes
    ----------
    batch : int
        Samples of a step, over all hosts or devices.
    tables : tuple of ModelTable
    ids : IdDistribution
    strategy : str or None
        Of the backend: its own name for it.
    """

    batch: int
    tables: tuple[ModelTable, ...]
    ids: IdDistribution
    strategy: str | None = None


def example_model() -> Path:
    """Return the model that comes with the package: DLRM-DCNv2 of MLPerf (Criteo 1TB multi-hot).

    Examples
    --------
    >>> model = load_model(example_model())
    >>> len(model.tables), sum(table.spec.num_rows for table in model.tables)
    (26, 204184588)
    """
    return Path(__file__).with_name("dlrm_dcnv2.toml")


def load_model(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Model:
    """Read a model's description.

    Parameters
    ----------
    path : path of a TOML file
    overrides : mapping, optional
        Keys of the model, or of all its tables, that take the place of those in the file.

    Returns
    -------
    Model

    Raises
    ------
    ShardcoreOSError
        If the file cannot be read.
    ShardcoreTypeError, ShardcoreValueError
        If it is no TOML, or an entry is missing, unknown, or breaks its rule.
    """
    try:
        described = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ShardcoreOSError(f"model {path} cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ShardcoreValueError(f"model {path} is no TOML: {error}") from error
    tables = described.get("table")
    if not isinstance(tables, list) or not tables:
        raise ShardcoreValueError(f"model {path} must have at least one [[table]]")
    for key, value in (overrides or {}).items():
        for where in [described] if key in _MODEL_KEYS else tables:
            if isinstance(where, dict):  # what is none is refused below
                where[key] = value
        if key == "optimizer":
            for table in tables:
                if isinstance(table, dict):
                    table.pop(key, None)
    try:
        _check_keys(described, _MODEL_KEYS, ("batch",))
        optimizer = _made(described.get("optimizer", "Adagrad"))
        batch = as_count(described["batch"], "batch")
        ids = IdDistribution(described.get("ids", "zipf:1.05"))
        strategy = described.get("strategy")
        if strategy is not None and not isinstance(strategy, str):
            raise ShardcoreTypeError(f"strategy must be a str, got {strategy!r}")
        read = []
        for at, table in enumerate(tables):
            try:
                read.append(_read_table(table, optimizer))
            except ShardcoreError as error:
                raise type(error)(f"table[{at}]: {error}") from error
        names = [table.spec.name for table in read]
        for name in names:
            if names.count(name) > 1:
                raise ShardcoreValueError(f"two tables are named {name!r}")
    except ShardcoreError as error:
        raise type(error)(f"model {path}: {error}") from error
    return Model(batch, tuple(read), ids, strategy)


def _check_keys(given: Any, known: tuple[str, ...], needed: tuple[str, ...]) -> None:
    if not isinstance(given, Mapping):
        raise ShardcoreTypeError(f"must be a table of TOML, got {given!r}")
    for key in given:
        if key not in known:
            raise ShardcoreValueError(f"unknown key {key!r}; known are {', '.join(known)}")
    for key in needed:
        if key not in given:
            raise ShardcoreValueError(f"the key {key!r} is missing")


def _made(optimizer: Any) -> Optimizer | None:
    """Return the optimizer of a name with its defaults, or None for an empty name."""
    return None if optimizer == "" else get_optimizer(optimizer)()


def _read_table(given: Any, optimizer: Optimizer | None) -> ModelTable:
    _check_keys(given, _TABLE_KEYS, ("name", "rows", "dim"))
    if "optimizer" in given:
        optimizer = _made(given["optimizer"])
    options = {key: given[key] for key in ("dtype", "layout", "placement", "exchange")
               if key in given}  # fmt: skip
    config = TableConfig(
        as_count(given["rows"], "rows"),
        given["dim"],
        initializer=Zeros(),
        optimizer=optimizer,
        name=given["name"],
        **options,
    )
    spec = TableSpec(
        given["name"],
        config.vocabulary_size,
        config.dim,
        table_dtype(config.dtype),
        Zeros(),
        0,
        optimizer,
        "div" if config.layout is None else config.layout,
        config.placement,
        config.exchange,
    )
    hot = as_count(given.get("hot", 1), "hot")
    return ModelTable(spec, hot, config.layout is not None)

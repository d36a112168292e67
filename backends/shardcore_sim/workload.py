"""A model to simulate, described in a TOML file, and the ids of a batch of it.

::

    batch = 65536               # samples of a step, over all hosts
    optimizer = "Adagrad"       # a name of shardcore.optimizers, or "" for lookups only
    ids = "zipf:1.05"           # or "uniform", "reuse:2021", "reuse:2022"

    [[table]]
    name = "user"
    rows = 40000000
    dim = 128
    hot = 3                     # ids per sample
    # and, where they are not these:
    dtype = "float32"
    layout = "div"
    placement = "row"
    exchange = "exact"

Ids of "zipf:s" follow a power law with exponent s over all rows of a table (a continuous one,
rounded down). Those of "reuse:year" are used as often, within a batch, as the ids of Meta's public
``dlrm_datasets`` of that year: their share of lookups by how often a row is named is published in
that repository. Either way, which rows are the hot ones is scattered over the table.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.batch import TableSpec
from shardcore.config import TableConfig
from shardcore.dtypes import table_dtype
from shardcore.errors import (
    ShardcoreError,
    ShardcoreOSError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.initializers import Zeros
from shardcore.registry import get_optimizer
from shardcore.shapes import as_count
from shardcore_sim.faults import as_number

__all__ = ["IdLaw", "Model", "ModelTable", "example_model", "load_model"]

# Share of lookups on rows that a batch names up to 1, 2, 4, … 32,768, and 65,536 times.
_REUSE: Final[Mapping[str, tuple[float, ...]]] = {
    "2021": (0.056, 0.043, 0.075, 0.099, 0.112, 0.091, 0.064, 0.052, 0.049, 0.050, 0.054, 0.058,
             0.061, 0.052, 0.038, 0.026, 0.020),
    "2022": (0.027, 0.023, 0.040, 0.068, 0.105, 0.120, 0.099, 0.070, 0.059, 0.054, 0.040, 0.072,
             0.064, 0.047, 0.021, 0.017, 0.076),
}  # fmt: skip

_LAWS: Final = "'uniform', 'zipf:<exponent>', 'reuse:2021' or 'reuse:2022'"
_MODEL_KEYS: Final = ("batch", "optimizer", "ids", "table")
_TABLE_KEYS: Final = ("name", "rows", "dim", "hot", "dtype", "layout", "placement", "exchange")


@dataclass(frozen=True)
class IdLaw:
    """How often rows are named.

    Parameters
    ----------
    text : str
        "uniform", "zipf:<exponent>" or "reuse:<year>".

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If it is nothing of this.

    Examples
    --------
    >>> ids = IdLaw("zipf:1.2").draw(np.random.default_rng(0), 1000, rows=10**6)
    >>> ids.dtype, np.unique(ids).size < 700
    (dtype('int64'), True)
    """

    text: str

    def __post_init__(self) -> None:
        rule = f"ids must be {_LAWS}, got {self.text!r}"
        if not isinstance(self.text, str):
            raise ShardcoreTypeError(rule)
        kind, _, value = self.text.partition(":")
        if kind == "zipf":
            try:
                exponent = float(value)
            except ValueError as error:
                raise ShardcoreValueError(rule) from error
            as_number(exponent, "the exponent of zipf ids")
        elif self.text != "uniform" and not (kind == "reuse" and value in _REUSE):
            raise ShardcoreValueError(rule)

    def draw(self, rng: np.random.Generator, count: int, rows: int) -> NDArray[np.int64]:
        """Return ids of a batch.

        Parameters
        ----------
        rng : numpy.random.Generator
        count : int
        rows : int
            Of the table.

        Returns
        -------
        ndarray of int64, shape (count,)
        """
        kind, _, value = self.text.partition(":")
        if kind == "uniform":
            return rng.integers(0, rows, count)
        ranks = (
            _power_law(rng, count, rows, float(value))
            if kind == "zipf"
            else _reused(rng, count, _REUSE[value]) % rows
        )
        # One to one, and far from order: hot rows are no neighbours.
        factor = next(k for k in range(int(rows * 0.6180339887) | 1, 2 * rows + 2)
                      if math.gcd(k, rows) == 1)  # fmt: skip
        scattered: NDArray[np.int64] = ranks * factor % rows
        return scattered


def _power_law(
    rng: np.random.Generator, count: int, rows: int, exponent: float
) -> NDArray[np.int64]:
    """Return ranks: the inverse of the distribution function of x**-s on [1, rows + 1)."""
    uniform, top, power = rng.random(count), rows + 1.0, 1.0 - exponent
    if abs(power) < 1e-9:
        x = top**uniform
    else:
        x = (1.0 + uniform * (top**power - 1.0)) ** (1.0 / power)
    return np.minimum(x.astype(np.int64) - 1, rows - 1)


def _reused(rng: np.random.Generator, count: int, shares: tuple[float, ...]) -> NDArray[np.int64]:
    """Return ranks that are named as often as the shares say."""
    times: list[NDArray[np.int64]] = []
    left = count
    for power, share in enumerate(shares):
        lookups = min(left, round(share * count))
        # A bin (2**(k - 1), 2**k] is taken to lie at its middle.
        often = min(max(1, round(0.75 * 2**power) if power > 1 else 2**power), max(lookups, 1))
        full, rest = divmod(lookups, often)
        times.append(np.full(full, often, np.int64))
        if rest:
            times.append(np.array([rest], np.int64))
        left -= lookups
    if left:
        times.append(np.ones(left, np.int64))
    all_times = np.concatenate(times)
    ranks = np.repeat(np.arange(all_times.size), all_times)
    rng.shuffle(ranks)
    return ranks


@dataclass(frozen=True, eq=False)
class ModelTable:
    """One table of a model, that one feature uses.

    Attributes
    ----------
    spec : TableSpec
    hot : int
        Ids per sample.
    """

    spec: TableSpec
    hot: int


@dataclass(frozen=True, eq=False)
class Model:
    """What is simulated.

    Attributes
    ----------
    batch : int
        Samples of a step, over all hosts.
    tables : tuple of ModelTable
    ids : IdLaw
    """

    batch: int
    tables: tuple[ModelTable, ...]
    ids: IdLaw


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
    try:
        _check_keys(described, _MODEL_KEYS, ("batch",))
        optimizer = described.get("optimizer", "Adagrad")
        made = None if optimizer == "" else get_optimizer(optimizer)()
        batch = as_count(described["batch"], "batch")
        ids = IdLaw(described.get("ids", "zipf:1.05"))
        read = []
        for at, table in enumerate(tables):
            try:
                read.append(_read_table(table, made))
            except ShardcoreError as error:
                raise type(error)(f"table[{at}]: {error}") from error
        names = [table.spec.name for table in read]
        for name in names:
            if names.count(name) > 1:
                raise ShardcoreValueError(f"two tables are named {name!r}")
    except ShardcoreError as error:
        raise type(error)(f"model {path}: {error}") from error
    return Model(batch, tuple(read), ids)


def _check_keys(given: Any, known: tuple[str, ...], needed: tuple[str, ...]) -> None:
    if not isinstance(given, Mapping):
        raise ShardcoreTypeError(f"must be a table of TOML, got {given!r}")
    for key in given:
        if key not in known:
            raise ShardcoreValueError(f"unknown key {key!r}; known are {', '.join(known)}")
    for key in needed:
        if key not in given:
            raise ShardcoreValueError(f"the key {key!r} is missing")


def _read_table(given: Any, optimizer: Any) -> ModelTable:
    _check_keys(given, _TABLE_KEYS, ("name", "rows", "dim"))
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
        config.layout,
        config.placement,
        config.exchange,
    )
    return ModelTable(spec, as_count(given.get("hot", 1), "hot"))

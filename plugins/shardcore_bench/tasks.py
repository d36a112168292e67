"""What is to be done, in words that every library can be asked in; and what shows that it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore_bench.contender import EXACT, LONG_SUMS, Tolerance

__all__ = [
    "Bags",
    "LookupTask",
    "PartitionTask",
    "ShardsTask",
    "SliceTask",
    "StepTask",
    "Update",
    "VariableTask",
]

Ids = NDArray[Any]


@dataclass(frozen=True, eq=False)
class LookupTask:
    """The rows of every bag combined. Arrays: activations (bags, dim).

    Attributes
    ----------
    rows : ndarray of float32, float16 or bfloat16
    weights : ndarray of float32, optional
        One per id.
    combiner : {"sum", "mean", "sqrtn"}
    """

    rows: NDArray[Any]
    ids: Ids
    row_splits: Ids
    weights: NDArray[np.float32] | None = None
    combiner: str = "sum"
    tolerance: Tolerance = EXACT


@dataclass(frozen=True)
class Update:
    """An optimizer by the name it has here, from the same start in every library.

    Attributes
    ----------
    name : {"SGD", "Adagrad", "RowwiseAdagrad", "Adam", "FTRL", "momentum"}
        Adagrad and FTRL start from `accumulator` and have no epsilon, Adam's is 1e-8 and its bias
        is corrected.
    stochastic : bool
        Round float16 and bfloat16 rows by chance.
    """

    name: str
    learning_rate: float = 0.01
    accumulator: float = 0.1
    momentum: float = 0.9
    stochastic: bool = False


@dataclass(frozen=True, eq=False)
class Bags:
    """The ids of one feature in one batch, and the gradient of its activations.

    Attributes
    ----------
    table : int
        Which of the task's tables.
    gradient : ndarray of float32
        (bags, dim); of a sequence (ids, dim).
    """

    table: int
    ids: Ids
    row_splits: Ids
    gradient: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class StepTask:
    """Lookup, backward and update of all tables.

    Arrays: activations of every feature, then of every table the rows `probes` after the update.

    Attributes
    ----------
    features : sequence of Bags
        Of as many bags each.
    sequence : bool
        Rows are not summed: the activations are (ids, dim), and all bags are of one length.
    probes : sequence of ndarray
        Per table: rows that the batch touches, and some that must stay as they are.
    """

    tables: Sequence[NDArray[Any]]
    features: Sequence[Bags]
    update: Update
    sequence: bool = False
    tolerance: Tolerance = LONG_SUMS
    probes: Sequence[Ids] = field(init=False)

    def __post_init__(self) -> None:
        probes = []
        for table, rows in enumerate(self.tables):
            ids = [bags.ids[:20_000] for bags in self.features if bags.table == table]
            near = np.arange(min(100, len(rows)))
            probes.append(np.union1d(np.concatenate(ids), near).astype(np.int64))
        object.__setattr__(self, "probes", probes)


@dataclass(frozen=True, eq=False)
class PartitionTask:
    """Ids grouped by shard. Arrays: local rows in that order, ids per shard, and the inverse."""

    ids: Ids
    sizes: NDArray[np.int64]
    strategy: str


@dataclass(frozen=True, eq=False)
class SliceTask:
    """A slice cut into local slices. Arrays: shards touched, then the local rows of each."""

    sizes: NDArray[np.int64]
    rows: slice


@dataclass(frozen=True, eq=False)
class VariableTask:
    """A slice read from a variable in shards. Arrays: the rows read."""

    shards: Sequence[NDArray[np.float32]]
    rows: slice


@dataclass(frozen=True, eq=False)
class ShardsTask:
    """Bags looked up in a table that lies in shards. Arrays: sums (bags, dim)."""

    shards: Sequence[NDArray[np.float32]]
    ids: Ids
    row_splits: Ids

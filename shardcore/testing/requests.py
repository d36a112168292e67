"""Requests for a backend under test: specs, bags and gradients from a seed, and two optimizers.

The arrays are read-only, as those of a caller may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.messages import FeatureBags, TableSpec
from shardcore.dtypes import as_dtype, working_dtype
from shardcore.errors import ShardcoreRuntimeError
from shardcore.initializers.distributions import Uniform
from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.hyperparameters import LearningRate
from shardcore.optimizer.slots import SlotSpec
from shardcore.store.segment_reduce import divisors

__all__ = [
    "LayoutKind",
    "Probe",
    "Refusing",
    "gradient_of",
    "joined",
    "layout_over",
    "make_bags",
    "make_spec",
    "read_only",
]

LayoutKind: TypeAlias = Literal["div", "mod", "ranges"]


@dataclass(frozen=True, eq=False, repr=False)
class Probe(Optimizer):
    """An optimizer whose result depends on all it was given: hyper, step, row ids and slots.

    Three slots, one per weight, one per row, one in a dtype of its own.
    """

    learning_rate: LearningRate = 0.25
    decay: float = 0.5

    hyper_names = ("learning_rate", "decay")
    slots = (
        SlotSpec("velocities", "element", fill=0.5),
        SlotSpec("peaks", "row", fill=0.25),
        SlotSpec("halves", "element", dtype="float16", fill=-1.5),
    )

    def update(
        self,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[float],
        step: int,
        row_ids: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return rows and slots that depend on every argument."""
        xp = rows.__array_namespace__()
        learning_rate, decay = hyper
        velocities = decay * slots["velocities"] + grad
        highest = xp.max(xp.abs(grad), axis=1, keepdims=True)
        places = xp.reshape(xp.astype(row_ids, rows.dtype), (-1, 1))
        new = rows - learning_rate * velocities + 0.015625 * step + 0.03125 * places
        return new, {
            "velocities": velocities,
            "peaks": xp.maximum(slots["peaks"], highest),
            "halves": decay * slots["halves"] + 0.125 * grad,
        }


@dataclass(frozen=True, eq=False, repr=False)
class Refusing(Optimizer):
    """An optimizer whose update always raises."""

    learning_rate: LearningRate = 0.25

    def update(
        self,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[float],
        step: int,
        row_ids: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Raise."""
        raise ShardcoreRuntimeError("this update always fails")


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array read-only and return it."""
    array.flags.writeable = False
    return array


def make_spec(
    name: str,
    num_rows: int,
    dim: int,
    dtype: str = "float32",
    optimizer: Optimizer | None = None,
    **fields: Any,
) -> TableSpec:
    """Return a table's spec, uniform in [-1, 1) unless another `initializer` is given."""
    fields = {"initializer": Uniform(-1.0, 1.0), "seed": 7, **fields}
    return TableSpec(name, num_rows, dim, as_dtype(dtype), optimizer=optimizer, **fields)


def layout_over(
    hosts: int, layout: LayoutKind, num_rows: int
) -> Literal["div", "mod"] | Sequence[int]:
    """Return a spec's layout; for "ranges" row counts that grow from host to host, often from 0.

    Examples
    --------
    >>> layout_over(4, "ranges", 23), layout_over(4, "mod", 23)
    ((1, 4, 7, 11), 'mod')
    """
    if layout != "ranges":
        return layout
    borders = [num_rows * host * host // (hosts * hosts) for host in range(hosts + 1)]
    return tuple(stop - start for start, stop in pairwise(borders))


def make_bags(
    rng: np.random.Generator,
    spec: TableSpec,
    num_bags: int,
    *,
    combiner: Literal["sum", "mean", "sqrtn"] = "sum",
    weighted: bool = False,
    longest: int = 5,
    ids_dtype: str = "int64",
    bags_per_sample: int = 1,
) -> FeatureBags:
    """Return bags of random ids; some are empty, weights are -1 to 2 in quarters, zeros among them.

    Weights that are sums of powers of two have exact sums, so that a divisor is 0 or far from it.
    """
    lengths = rng.integers(0, longest + 1, num_bags)
    row_splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = rng.integers(0, spec.num_rows, int(row_splits[-1])).astype(ids_dtype)
    weights = rng.integers(-4, 9, ids.size) / 4 if weighted else None
    return bags_of(spec, ids, row_splits, weights, combiner, bags_per_sample)


def bags_of(
    spec: TableSpec,
    ids: NDArray[Any],
    row_splits: NDArray[np.int64],
    weights: NDArray[Any] | None,
    combiner: str,
    bags_per_sample: int = 1,
) -> FeatureBags:
    """Return bags as the engine makes them, with the combiner's divisors."""
    value = working_dtype(spec.dtype)
    if weights is not None:
        weights = read_only(weights.astype(value))
    by = divisors(combiner, row_splits, weights, value)
    return FeatureBags(
        read_only(ids),
        read_only(row_splits),
        weights,
        None if by is None else read_only(by),
        bags_per_sample,
    )


def gradient_of(
    rng: np.random.Generator, spec: TableSpec, bags: FeatureBags, scale: float = 1.0
) -> NDArray[Any]:
    """Return a random gradient for a feature's activations, in the working dtype."""
    shape = (bags.num_bags, spec.dim)
    return read_only((rng.uniform(-scale, scale, shape)).astype(working_dtype(spec.dtype)))


def joined(first: FeatureBags, second: FeatureBags) -> FeatureBags:
    """Return the bags of two batches of a feature as those of one."""

    def both(one: NDArray[Any] | None, other: NDArray[Any] | None) -> NDArray[Any] | None:
        if one is None or other is None:
            return None
        return read_only(np.concatenate([one, other]))

    return FeatureBags(
        read_only(np.concatenate([first.ids, second.ids])),
        read_only(np.concatenate([first.row_splits, second.row_splits[1:] + first.ids.size])),
        both(first.weights, second.weights),
        both(first.divisors, second.divisors),
        first.bags_per_sample,
    )

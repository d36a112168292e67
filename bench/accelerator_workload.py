"""What is measured on an accelerator: one table and one batch per case, all from fixed seeds.

Rows are a function of their number, so that a table of any size is filled where it lives, the same
by everybody, and a few rows of it are known without it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ACCUMULATOR",
    "DISTRIBUTIONS",
    "LEARNING_RATE",
    "OPTIMIZERS",
    "Case",
    "Expected",
    "expected_of",
    "gradient_of",
    "ids_of",
    "row_values",
]

DISTRIBUTIONS: Final = ("uniform", "zipf")
OPTIMIZERS: Final = ("SGD", "Adagrad")
ZIPF_EXPONENT: Final = 1.2
LEARNING_RATE: Final = 0.01
ACCUMULATOR: Final = 0.1
SAMPLED_BAGS: Final = 64

_ROW_STRIDE: Final = 2654435761
_COLUMN_STRIDE: Final = 2246822519


@dataclass(frozen=True)
class Case:
    """A table, a batch, and how long to measure.

    Attributes
    ----------
    platform : str
        Of JAX.
    dim, rows : int
        Of the table, float32.
    bags, pooling : int
        A batch has `bags` bags of `pooling` ids each.
    rounds : int
        Samples per contender.
    sample_seconds : float
        A sample is as many calls as last about so long, with one wait for the device at its end.
    seconds : float
        After so long nothing more is begun.
    """

    platform: str
    dim: int
    rows: int
    bags: int
    pooling: int
    rounds: int
    sample_seconds: float
    seconds: float

    @property
    def table_bytes(self) -> int:
        return self.rows * self.dim * 4

    @property
    def occurrences(self) -> int:
        return self.bags * self.pooling

    @property
    def table(self) -> str:
        return (
            f"{self.table_bytes / 1e9:.3g} GB of {self.rows:,} x {self.dim}, bags of {self.pooling}"
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        return cls(**json.loads(text))


def row_values(rows: Any, columns: Any, whole: Callable[[int], Any] = int) -> Any:
    """Return the initial values of the table in [-0.5, 0.5), exact in float32.

    Parameters
    ----------
    rows, columns : integer arrays or tensors that broadcast
        uint32, whose products wrap round, or int64, which is wide enough for them.
    whole : callable
        What makes an integer constant one of their type.
    """
    mixed = rows * whole(_ROW_STRIDE) + columns * whole(_COLUMN_STRIDE) & whole(0xFFFFFFFF)
    return ((mixed ^ (mixed >> whole(15))) >> whole(8)) * 2.0**-24 - 0.5


def ids_of(case: Case, distribution: str) -> NDArray[np.int64]:
    """Return the ids of a batch, bag after bag.

    "uniform": each row is equally likely. "zipf": rank k has a probability proportional to
    k**-1.2; ranks are dealt to rows by a stride, so that hot rows are no neighbours.
    """
    draw = np.random.default_rng(2)
    if distribution == "uniform":
        return draw.integers(0, case.rows, case.occurrences)
    ranks = np.empty(0, np.int64)
    while ranks.size < case.occurrences:  # ranks beyond the table are drawn again
        drawn = draw.zipf(ZIPF_EXPONENT, case.occurrences)
        ranks = np.concatenate((ranks, drawn[drawn <= case.rows]))
    stride = max(1, int(case.rows * 0.618))
    while math.gcd(stride, case.rows) != 1:
        stride += 1
    return (ranks[: case.occurrences] - 1) * stride % case.rows


def gradient_of(case: Case) -> NDArray[np.float32]:
    """Return the gradient of a batch's activations, (bags, dim)."""
    return np.random.default_rng(3).standard_normal((case.bags, case.dim), np.float32)


@dataclass(frozen=True)
class Expected:
    """What is right, of a few bags and rows, in float64.

    Attributes
    ----------
    bags : NDArray
        Numbers of the sampled bags.
    activations : NDArray
        Theirs before any update.
    rows : NDArray
        Numbers of the rows in those bags.
    updated : NDArray
        Their values after one step.
    bound : NDArray
        How far float32 sums may be from `updated`, from the sum of what they add.
    """

    bags: NDArray[np.int64]
    activations: NDArray[np.float64]
    rows: NDArray[np.int64]
    updated: NDArray[np.float64]
    bound: NDArray[np.float64]

    def check_activations(self, found: NDArray[Any], what: str) -> None:
        np.testing.assert_allclose(
            found, self.activations, rtol=1e-5, atol=1e-5, err_msg=f"activations of {what}"
        )

    def check_rows(self, found: NDArray[Any], what: str) -> None:
        error = np.abs(found - self.updated)
        worst = (error - self.bound).max()
        assert worst <= 0, f"rows after one step of {what} are off by {worst:g} more than rounding"


def expected_of(case: Case, ids: NDArray[np.int64], optimizer: str, zeros: bool) -> Expected:
    """Work out a few bags and rows with NumPy; `zeros`: the table starts from zeros."""
    bags = np.unique(np.linspace(0, case.bags - 1, SAMPLED_BAGS).astype(np.int64))
    sampled = ids.reshape(case.bags, case.pooling)[bags]
    rows = np.unique(sampled)
    columns = np.arange(case.dim, dtype=np.int64)
    initial = np.zeros((rows.size, case.dim))
    if not zeros:
        initial = np.asarray(row_values(rows[:, None], columns), np.float64)
    activations = initial[np.searchsorted(rows, sampled)].sum(axis=1)
    touching = np.flatnonzero(np.isin(ids, rows))
    at = np.searchsorted(rows, ids[touching])
    gradients = gradient_of(case)[touching // case.pooling].astype(np.float64)
    total, size = np.zeros_like(initial), np.zeros_like(initial)
    np.add.at(total, at, gradients)
    np.add.at(size, at, np.abs(gradients))
    scale = np.sqrt(ACCUMULATOR + total**2) if optimizer == "Adagrad" else 1.0
    updated = initial - LEARNING_RATE * total / scale
    bound = 1e-6 + LEARNING_RATE * 4e-6 * size
    return Expected(bags, activations, rows, updated, bound)

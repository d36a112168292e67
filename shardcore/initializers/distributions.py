"""Random initial values: truncated normal, normal and uniform.

Numbers come from the generator documented in ``shardcore/_core/random.pyx``. They are computed in
float64 and rounded once to the dtype asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from shardcore._core import random
from shardcore.dtypes import table_dtype
from shardcore.errors import ShardcoreValueError
from shardcore.initializers.base import (
    BLOCK_BYTES,
    Array,
    Initializer,
    as_scalar,
    checked_call,
    finite,
    positive,
    rounded,
)
from shardcore.validation.shapes import as_shape

__all__ = ["TruncatedNormal", "Normal", "Uniform"]

_FARTHEST: Final = 8.21  # no normal number lies farther from the mean, in standard deviations


@dataclass(frozen=True)
class TruncatedNormal:
    """Normal numbers, none farther than two standard deviations from the mean.

    By the inverse of the distribution function (Wichura, AS 241, Applied Statistics 37, 1988), so
    none is drawn twice.

    Parameters
    ----------
    mean : float
    stddev : float, optional
        Of the normal distribution before it is truncated, > 0; the numbers themselves have 0.8796
        times that. None: 1 / sqrt(elements of a row), which for a table of rank 2 is 1 / sqrt(dim).

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is no number, not finite, or `stddev` not above 0.

    Examples
    --------
    >>> TruncatedNormal()(np.array([7]), (2,), "float32", 0).round(4)
    array([[ 0.9139, -0.0485]], dtype=float32)
    """

    mean: float = 0.0
    stddev: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", finite(self.mean, "mean"))
        if self.stddev is not None:
            object.__setattr__(self, "stddev", positive(self.stddev, "stddev"))

    def __call__(
        self, rows: ArrayLike, row_shape: Sequence[int], dtype: DTypeLike, seed: int
    ) -> Array:
        """Return the values of `rows`, shape (len(rows), *row_shape); see `Initializer`."""
        stddev = self.stddev
        if stddev is None:
            stddev = 1.0 / math.sqrt(max(1, math.prod(as_shape(row_shape, "row_shape"))))
        reach = 2.0 * stddev
        bounds = (self.mean - reach, self.mean + reach)
        return _draw(
            self, random.truncated_normal, (self.mean, stddev), bounds, rows, row_shape, dtype, seed
        )


@dataclass(frozen=True)
class Normal:
    """Normal numbers.

    By the inverse of the distribution function (Wichura, AS 241, Applied Statistics 37, 1988); none
    is farther than 8.21 standard deviations from the mean.

    Parameters
    ----------
    mean : float
    stddev : float
        > 0.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is no number, not finite, or `stddev` not above 0.

    Examples
    --------
    >>> Normal()(np.array([7]), (2,), "float32", 0).round(4)
    array([[ 1.4122, -0.0719]], dtype=float32)
    """

    mean: float = 0.0
    stddev: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", finite(self.mean, "mean"))
        object.__setattr__(self, "stddev", positive(self.stddev, "stddev"))

    def __call__(
        self, rows: ArrayLike, row_shape: Sequence[int], dtype: DTypeLike, seed: int
    ) -> Array:
        """Return the values of `rows`, shape (len(rows), *row_shape); see `Initializer`."""
        reach = _FARTHEST * self.stddev
        bounds = (self.mean - reach, self.mean + reach)
        parameters = (self.mean, self.stddev)
        return _draw(self, random.normal, parameters, bounds, rows, row_shape, dtype, seed)


@dataclass(frozen=True)
class Uniform:
    """Numbers of equal density from `low` to `high`; rounding to the dtype may give `high` itself.

    Parameters
    ----------
    low, high : float
        low < high.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is no number, not finite, `low` is not below `high`, or `high - low` is not
        finite.

    Examples
    --------
    >>> Uniform(0, 1)(np.array([7]), (2,), "float32", 0).round(4)
    array([[0.9211, 0.4714]], dtype=float32)
    """

    low: float = -0.05
    high: float = 0.05

    def __post_init__(self) -> None:
        low, high = finite(self.low, "low"), finite(self.high, "high")
        if not low < high:
            raise ShardcoreValueError(f"low must be below high, got low = {low}, high = {high}")
        if not math.isfinite(high - low):
            raise ShardcoreValueError(f"high - low must be finite, got low = {low}, high = {high}")
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def __call__(
        self, rows: ArrayLike, row_shape: Sequence[int], dtype: DTypeLike, seed: int
    ) -> Array:
        """Return the values of `rows`, shape (len(rows), *row_shape); see `Initializer`."""
        bounds = (self.low, self.high)
        return _draw(self, random.uniform, bounds, bounds, rows, row_shape, dtype, seed)


def _draw(
    init: Initializer,
    kernel: Callable[[NDArray[np.int64], int, float, float, Array], None],
    parameters: tuple[float, float],
    bounds: tuple[float, float],
    rows: ArrayLike,
    row_shape: Sequence[int],
    dtype: DTypeLike,
    seed: int,
) -> Array:
    """Return random numbers of `kernel`; the short floats pass through blocks of float64."""
    resolved = table_dtype(dtype)
    ids, shape, _ = checked_call(init, rows, row_shape, resolved, seed)
    for bound in bounds:
        as_scalar(init, bound, resolved)
    out = np.empty((len(ids), math.prod(shape)), resolved)
    if resolved.itemsize >= 4:
        kernel(ids, seed, *parameters, out)
        return out.reshape(len(ids), *shape)
    block_rows = max(1, BLOCK_BYTES // max(1, 8 * out.shape[1]))
    scratch = np.empty((min(block_rows, len(ids)), out.shape[1]))
    for start in range(0, len(ids), block_rows):
        block = ids[start : start + block_rows]
        kernel(block, seed, *parameters, scratch[: len(block)])
        out[start : start + block_rows] = rounded(scratch[: len(block)], resolved)
    return out.reshape(len(ids), *shape)

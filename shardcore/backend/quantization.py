"""Rows rounded to the buckets of a range, as a lookup sees them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardcore.dtypes import working_dtype
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, shown
from shardcore.validation.arrays import as_floats, read_array
from shardcore.validation.shapes import as_count

__all__ = ["QuantizationConfig"]


@dataclass(frozen=True)
class QuantizationConfig:
    """Simulated quantization of looked-up rows, before they are combined.

    Rows are stored as they are; a lookup sees them rounded to one of `num_buckets` evenly spaced
    values from `lower` to `upper`.

    Parameters
    ----------
    num_buckets : int, >= 2
        Number of values that are left.
    lower, upper : float
        The least and the greatest of them; finite, ``lower < upper``.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule.

    Notes
    -----
    As TensorFlow's ``tf.tpu.experimental.embedding.QuantizationConfig``: with
    ``q = (upper - lower) / (num_buckets - 1)``, x becomes
    ``floor((clamp(x, lower, upper) - lower) / q + 0.5) * q + lower``.

    Examples
    --------
    >>> QuantizationConfig(3, -1.0, 1.0).apply(np.array([-7.0, -0.5, 0.4, 0.6]))
    array([-1.,  0.,  0.,  1.])
    """

    num_buckets: int
    lower: float
    upper: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_buckets", as_count(self.num_buckets, "num_buckets", 2))
        for name in ("lower", "upper"):
            object.__setattr__(self, name, _as_finite(getattr(self, name), name))
        if self.lower >= self.upper:
            raise ShardcoreValueError(
                f"lower must be less than upper, got lower = {self.lower}, upper = {self.upper}"
            )
        if not math.isfinite(self.upper - self.lower):
            raise ShardcoreValueError(
                f"upper - lower must be finite, got lower = {self.lower}, upper = {self.upper}"
            )

    @property
    def step(self) -> float:
        """The distance q of two neighbouring values."""
        return (self.upper - self.lower) / (self.num_buckets - 1)

    def apply(self, x: ArrayLike) -> NDArray[Any]:
        """Return `x` rounded to the buckets; NaN stays NaN.

        Parameters
        ----------
        x : array_like of float
            Any shape.

        Returns
        -------
        ndarray
            A new array of the same shape: float64 for float64, else float32.

        Raises
        ------
        ShardcoreTypeError
            If `x` holds no real numbers.
        """
        array = as_floats(read_array(x, "x"), "x")
        values = array.astype(working_dtype(array.dtype))
        np.clip(values, self.lower, self.upper, out=values)
        values -= self.lower
        values /= self.step
        values += 0.5
        np.floor(values, out=values)
        values *= self.step
        values += self.lower
        return values


def _as_finite(value: object, argument: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ShardcoreTypeError(f"{argument} must be a finite number, got {shown(value)}")
    if not math.isfinite(value):
        raise ShardcoreValueError(f"{argument} must be a finite number, got {value}")
    return float(value)

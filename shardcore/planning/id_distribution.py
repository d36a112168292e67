"""How often a batch names the rows of a table: the distributions of made-up ids.

Ids of "zipf:s" follow a power law with exponent s over all rows of a table (a continuous one,
rounded down). Those of "reuse:year" are used as often, within a batch, as the ids of Meta's public
``dlrm_datasets`` of that year: their share of lookups by how often a row is named is published in
that repository. Either way, which rows are the hot ones is scattered over the table, or the rows
are numbered by rank, the hottest first, as a vocabulary is that was counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError

__all__ = ["IdDistribution"]

# Share of lookups on rows that a batch names up to 1, 2, 4, … 32,768, and 65,536 times.
_REUSE: Final[Mapping[str, tuple[float, ...]]] = {
    "2021": (0.056, 0.043, 0.075, 0.099, 0.112, 0.091, 0.064, 0.052, 0.049, 0.050, 0.054, 0.058,
             0.061, 0.052, 0.038, 0.026, 0.020),
    "2022": (0.027, 0.023, 0.040, 0.068, 0.105, 0.120, 0.099, 0.070, 0.059, 0.054, 0.040, 0.072,
             0.064, 0.047, 0.021, 0.017, 0.076),
}  # fmt: skip

_LAWS: Final = "'uniform', 'zipf:<exponent>', 'reuse:2021' or 'reuse:2022'"


@dataclass(frozen=True)
class IdDistribution:
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
    >>> ids = IdDistribution("zipf:1.2").draw(np.random.default_rng(0), 1000, rows=10**6)
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
            if not 0 <= exponent < math.inf:
                raise ShardcoreValueError(
                    f"the exponent of zipf ids must be a finite number >= 0, got {exponent}"
                )
        elif self.text != "uniform" and not (kind == "reuse" and value in _REUSE):
            raise ShardcoreValueError(rule)

    @property
    def ranked(self) -> bool:
        """Whether some rows are hotter than others."""
        return self.text != "uniform"

    def draw(
        self, rng: np.random.Generator, count: int, rows: int, by_rank: bool = False
    ) -> NDArray[np.int64]:
        """Return ids of a batch.

        Parameters
        ----------
        rng : numpy.random.Generator
        count : int
        rows : int
            Of the table.
        by_rank : bool, default False
            Whether the hottest rows come first, not scattered.

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
        if by_rank:
            return ranks if kind == "zipf" else ranks.max(initial=0) - ranks
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
    ranks = np.repeat(np.arange(all_times.size), all_times)  # the hottest last: see draw
    rng.shuffle(ranks)
    return ranks

"""Numbers whose sum depends on its order, and the two orders of the contract."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def of_many_sizes(rows: int, columns: int, seed: int = 0) -> NDArray[np.float32]:
    """Return numbers from 1e-4 to 1e4 of both signs, whose float32 sums depend on their order."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-4, 4, (rows, columns))
    return np.asarray(sizes * rng.choice([-1.0, 1.0], sizes.shape), np.float32)


def in_order(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the sum of rows, added one after the other."""
    total = np.zeros(rows.shape[1], np.float32)
    for row in rows:
        total = total + row
    return total


def in_blocks(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the sum of the sums of blocks of 4,096 rows, as the contract adds gradients."""
    return in_order(
        np.array([in_order(rows[start : start + 4096]) for start in range(0, len(rows), 4096)])
    )

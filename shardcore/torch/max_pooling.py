"""The largest value per column of each bag, whose gradient goes where torch sends it.

That is the first of the bag's rows that has the largest value. As in torch, a NaN counts only in
the first row of a bag.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardcore.store.bag_max import max_of_bags as winners_of_bags

__all__ = ["bag_numbers", "max_of_bags"]


def bag_numbers(row_splits: NDArray[np.int64]) -> Any:
    """Return the number of the bag of every id.

    Examples
    --------
    >>> bag_numbers(np.array([0, 2, 2, 3]))
    tensor([0, 0, 2])
    """
    lengths = np.diff(row_splits)
    return torch.from_numpy(np.repeat(np.arange(lengths.size), lengths))


def max_of_bags(rows: Any, row_splits: NDArray[np.int64]) -> Any:
    """Return the largest values of bags, zeros for an empty bag.

    Parameters
    ----------
    rows : tensor of floats, shape (ids, dim)
    row_splits : ndarray, shape (bags + 1,)

    Examples
    --------
    >>> max_of_bags(torch.tensor([[1.0, 5.0], [3.0, 4.0]]), np.array([0, 2, 2]))
    tensor([[3., 5.],
            [0., 0.]])
    """
    bags, dim = row_splits.size - 1, rows.shape[1]
    with torch.no_grad():
        wide = rows.dtype if rows.dtype == torch.float64 else torch.float32
        values = rows.detach().to(wide).contiguous().numpy()
        first = torch.from_numpy(winners_of_bags(values, row_splits)[1].astype(np.int64))
    filled = torch.from_numpy(np.flatnonzero(np.diff(row_splits)))
    found = rows.new_zeros((bags, dim))
    return found.index_copy(0, filled, rows.gather(0, first[filled]))

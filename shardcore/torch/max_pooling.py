"""The largest value per column of each bag, whose gradient goes where torch sends it.

That is the first of the bag's rows that has the largest value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
    rows : tensor, shape (ids, dim)
    row_splits : ndarray, shape (bags + 1,)

    Examples
    --------
    >>> max_of_bags(torch.tensor([[1.0, 5.0], [3.0, 4.0]]), np.array([0, 2, 2]))
    tensor([[3., 5.],
            [0., 0.]])
    """
    bags, (ids, dim) = row_splits.size - 1, rows.shape
    bag = bag_numbers(row_splits)
    columns = bag[:, None].expand(ids, dim)
    with torch.no_grad():
        least = torch.full((bags, dim), -torch.inf, dtype=rows.dtype)
        largest = least.scatter_reduce(0, columns, rows, "amax")
        place = torch.arange(ids)[:, None].expand(ids, dim)
        place = torch.where(rows == largest[bag], place, ids)
        first = torch.full((bags, dim), ids).scatter_reduce(0, columns, place, "amin")
        filled = torch.from_numpy(np.flatnonzero(np.diff(row_splits)))
        # A NaN equals nothing; the first row of the bag then stands for it.
        begins = torch.from_numpy(row_splits[:-1])[filled][:, None]
        first = torch.where(first[filled] < ids, first[filled], begins)
    found = rows.new_zeros((bags, dim))
    return found.index_copy(0, filled, rows.gather(0, first))

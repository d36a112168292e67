from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore._core.partition import Placement

MOST_IDS: int
DIVIDED: dict[str, int]

class FewBags:
    def __init__(
        self,
        bases__s: NDArray[np.int64],
        placement: Placement | None,
        stride: int,
        kind: int,
        dim: int,
        rows: int,
        asking: int,
        combine_many: Callable[[NDArray[Any], NDArray[Any], int, NDArray[Any]], bool] | None,
        held: object,
    ) -> None: ...
    def combine(
        self,
        values: NDArray[Any],
        row_splits: NDArray[Any],
        weights: NDArray[Any] | None,
        divided: int,
        out: NDArray[Any],
    ) -> bool: ...

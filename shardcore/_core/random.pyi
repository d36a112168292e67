from typing import Any

import numpy as np
from numpy.typing import NDArray

def uniform_bits(rows: NDArray[np.int64], seed: int, out: NDArray[np.uint64]) -> None: ...
def uniform(
    rows: NDArray[np.int64], seed: int, low: float, high: float, out: NDArray[Any]
) -> None: ...
def normal(
    rows: NDArray[np.int64], seed: int, mean: float, stddev: float, out: NDArray[Any]
) -> None: ...
def truncated_normal(
    rows: NDArray[np.int64], seed: int, mean: float, stddev: float, out: NDArray[Any]
) -> None: ...

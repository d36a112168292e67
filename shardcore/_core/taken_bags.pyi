from typing import Any

from numpy.typing import NDArray

def take_bags(
    values: NDArray[Any],
    row_splits: NDArray[Any],
    rows: int,
    own__n: NDArray[Any],
    own_splits: NDArray[Any],
) -> bool: ...

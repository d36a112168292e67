from numpy import int64
from numpy.typing import NDArray

def decompose(
    offsets: NDArray[int64], start: int, step: int, count: int
) -> list[tuple[int, slice]]: ...

from numpy import int64
from numpy.typing import NDArray

def decompose(offsets: NDArray[int64], rows: slice) -> list[tuple[int, slice]]: ...

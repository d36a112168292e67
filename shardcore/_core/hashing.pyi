from typing import overload

from numpy import int8, int32, int64, uint8, uint32, uint64
from numpy.typing import NDArray

def find_words(
    words: list[str | bytes],
    addresses__n: NDArray[int64],
    lengths__n: NDArray[int64],
    widths__n: NDArray[int8],
) -> int: ...
def find_fixed(
    units: NDArray[uint8] | NDArray[uint32],
    addresses__n: NDArray[int64],
    lengths__n: NDArray[int64],
) -> None: ...
def hash_words(
    addresses__n: NDArray[int64],
    lengths__n: NDArray[int64],
    widths__n: NDArray[int8],
    kind: int,
    seed: int,
    buckets: int,
    scratch: NDArray[uint8],
    rows__n: NDArray[int64],
) -> int: ...
@overload
def hash_spans(
    data: NDArray[uint8],
    offsets__n1: NDArray[int32],
    kind: int,
    seed: int,
    buckets: int,
    rows__n: NDArray[int64],
) -> int: ...
@overload
def hash_spans(
    data: NDArray[uint8],
    offsets__n1: NDArray[int64],
    kind: int,
    seed: int,
    buckets: int,
    rows__n: NDArray[int64],
) -> int: ...
def hash_views(
    views: NDArray[uint8],
    addresses__b: NDArray[int64],
    sizes__b: NDArray[int64],
    kind: int,
    seed: int,
    buckets: int,
    rows__n: NDArray[int64],
) -> int: ...
def hash_integers(
    words__n: NDArray[uint64], seed: int, buckets: int, rows__n: NDArray[int64]
) -> None: ...

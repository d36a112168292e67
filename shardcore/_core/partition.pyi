from typing import overload

from numpy import int32, int64
from numpy.typing import NDArray

Ints = NDArray[int32] | NDArray[int64]

class Placement:
    offsets: NDArray[int64] | None
    first: bytes | None
    shift: int
    reach: int
    size: int
    @staticmethod
    def ranges(offsets: NDArray[int64], cells: int, shift: int, size: int) -> Placement: ...
    @staticmethod
    def mod(rows: int, shards: int) -> Placement: ...

def first_outside(ids__n: Ints, rows: int) -> int: ...
@overload
def take_ids(ids__n: NDArray[int32], rows: int, own__n: NDArray[int32]) -> int: ...
@overload
def take_ids(ids__n: NDArray[int64], rows: int, own__n: NDArray[int64]) -> int: ...
def locate(
    placement: Placement, ids__n: Ints, shard__n: NDArray[int64], local__n: NDArray[int64]
) -> int: ...
def addresses(
    placement: Placement,
    ids__n: Ints,
    bases__s: NDArray[int64],
    stride: int,
    addresses__n: NDArray[int64],
) -> int: ...
def group(
    placement: Placement,
    ids__n: Ints,
    local__n: Ints,
    row_splits: NDArray[int64],
    inverse__n: NDArray[int64],
) -> int: ...
def count(
    placement: Placement, ids__n: Ints, counts__s: NDArray[int64], inverse__n: NDArray[int64]
) -> int: ...
def place(
    placement: Placement, places__s: NDArray[int64], local: Ints, inverse__n: NDArray[int64]
) -> None: ...

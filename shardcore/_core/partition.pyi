from typing import overload

from numpy import int32, int64
from numpy.typing import NDArray

Ints = NDArray[int32] | NDArray[int64]

def shard_table(offsets: NDArray[int64], shift: int, first: NDArray[int32]) -> int: ...
def first_outside(ids__n: Ints, rows: int) -> int: ...
@overload
def take_ids(ids__n: NDArray[int32], rows: int, own__n: NDArray[int32]) -> int: ...
@overload
def take_ids(ids__n: NDArray[int64], rows: int, own__n: NDArray[int64]) -> int: ...
def locate_ranges(
    ids__n: Ints,
    offsets: NDArray[int64],
    first: NDArray[int32],
    shift: int,
    reach: int,
    size: int,
    shard__n: NDArray[int64],
    local__n: NDArray[int64],
) -> int: ...
def locate_mod(
    ids__n: Ints, rows: int, shards: int, shard__n: NDArray[int64], local__n: NDArray[int64]
) -> int: ...
def addresses_ranges(
    ids__n: Ints,
    offsets: NDArray[int64],
    first: NDArray[int32],
    shift: int,
    reach: int,
    size: int,
    bases__s: NDArray[int64],
    stride: int,
    addresses__n: NDArray[int64],
) -> int: ...
def addresses_mod(
    ids__n: Ints,
    rows: int,
    shards: int,
    bases__s: NDArray[int64],
    stride: int,
    addresses__n: NDArray[int64],
) -> int: ...
def group_ranges(
    ids__n: Ints,
    offsets: NDArray[int64],
    first: NDArray[int32],
    shift: int,
    reach: int,
    size: int,
    local__n: Ints,
    row_splits: NDArray[int64],
    inverse__n: NDArray[int64],
) -> int: ...
def group_mod(
    ids__n: Ints,
    rows: int,
    shards: int,
    local__n: Ints,
    row_splits: NDArray[int64],
    inverse__n: NDArray[int64],
) -> int: ...

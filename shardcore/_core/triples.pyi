import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Gains = NDArray[np.float32]

COUNTERS: int
WORDS: int

def count_keys(
    numbers__n: Ints, holder_bits: int, row_bits: int, shift: int, counts: Ints
) -> None: ...
def deal_bags(
    numbers__n: Ints,
    row_splits: Ints,
    first_bag: int,
    last_bag: int,
    number: int,
    gains__n: Gains,
    gains__b: Gains,
    holder_bits: int,
    row_bits: int,
    shift: int,
    starts: Ints,
    pairs: NDArray[np.uint64],
) -> None: ...
def sort_triples(
    pairs: NDArray[np.uint64],
    spare: NDArray[np.uint64],
    limits: Ints,
    shift: int,
    counters: NDArray[np.uint32],
    row_bits: int,
    counts__h: Ints,
    unique__h: Ints,
) -> int: ...
def count_parts(
    pairs: NDArray[np.uint64],
    n: int,
    row_bits: int,
    part_bits: int,
    counts__ph: Ints,
    unique__ph: Ints,
) -> None: ...
def list_keys(pairs: NDArray[np.uint64], n: int, keys: Ints) -> None: ...
def count_distinct(
    keys: Ints,
    limits__w: Ints,
    first: int,
    end: int,
    window_bits: int,
    bitmap: NDArray[np.uint64],
    at__2w: Ints,
) -> int: ...
def list_triples(
    pairs: NDArray[np.uint64],
    n: int,
    row_bits: int,
    part_bits: int,
    starts__ph: Ints,
    padding: int,
    rows: NDArray[np.int32],
    bags: NDArray[np.int32],
    gains: Gains,
) -> None: ...

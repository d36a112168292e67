from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Places = NDArray[np.int32]

# Fused kernels, chosen by type: kernel["int32_t" | "int64_t"].
class _Fused:
    def __getitem__(self, types: str | tuple[str, ...]) -> Callable[..., None]: ...

COUNTERS: int

count_keys: _Fused  # (ids, first, last, shards, offsets, shift, counts)
# (ids, row_splits, first_bag, last_bag, bags, starts__a, room, shards, offsets, shift, starts,
#  pairs)
deal_positions: _Fused

def sort_askers(
    pairs: NDArray[np.uint64],
    spare: NDArray[np.uint64],
    limits: Ints,
    shift: int,
    counters: NDArray[np.uint32],
    length: int,
    rows_per_line: int,
    borders: Ints,
    seen__a: NDArray[np.uint32],
    rows__oa: Ints,
    lines__o: Ints,
    unique__o: Ints,
) -> None: ...
def list_asked(
    pairs: NDArray[np.uint64],
    first: int,
    last: int,
    length: int,
    borders: Ints,
    owner: int,
    room: int,
    seen__a: NDArray[np.uint32],
    ahead__a: Ints,
    asked__oac: Places,
    slots__p: Places,
) -> None: ...
def fill_rest(lists__rc: Places, counts__r: Ints, padding: int) -> None: ...

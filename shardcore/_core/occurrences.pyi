from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# Fused kernels, chosen by type: kernel["int32_t" | "int64_t"].
class _Fused:
    def __getitem__(self, types: str | tuple[str, ...]) -> Callable[..., None]: ...

COUNTERS: int
NARROW_WORDS: int
WIDE_WORDS: int

count_buckets: _Fused  # (rows, shift, counts)
deal: _Fused  # (rows, sources, shift, starts, pairs, wide)
deal_bags: _Fused  # (rows, row_splits, first, shift, starts, pairs, wide)

def bags_of_ids(
    row_splits: NDArray[np.int64], first: int, sources__n: NDArray[np.int32]
) -> None: ...
def starts_of_buckets(counts__pb: NDArray[np.int64], limits: NDArray[np.int64]) -> None: ...
def sort_buckets(
    pairs: NDArray[np.uint64],
    spare: NDArray[np.uint64],
    limits: NDArray[np.int64],
    shift: int,
    counters: NDArray[np.uint32],
    wide: bool,
    unique__n: NDArray[np.int64],
    run_splits: NDArray[np.int64],
    sources__n: NDArray[np.int32],
) -> int: ...

class Sorts:
    ids: int
    tables: int
    scratch: int
    def add(
        self,
        rows__n: NDArray[np.int32] | NDArray[np.int64],
        row_splits: NDArray[np.int64],
        shift: int,
        by_row: bool,
    ) -> None: ...
    def add_feature(
        self, rows__n: NDArray[np.int32] | NDArray[np.int64], row_splits: NDArray[np.int64]
    ) -> None: ...
    def add_sources(
        self,
        rows__n: NDArray[np.int32] | NDArray[np.int64],
        sources__n: NDArray[np.int32],
        shift: int,
    ) -> None: ...
    def cut(self, most: int, least: int) -> int: ...
    def make(
        self,
        scratch: NDArray[np.uint32],
        unique__n: NDArray[np.int64],
        run_splits: NDArray[np.int64],
        sources__n: NDArray[np.int32],
        most: int = ...,
    ) -> None: ...
    def make_alone(
        self, most: int
    ) -> list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]] | None: ...
    def parts_of(
        self,
        unique__n: NDArray[np.int64],
        run_splits: NDArray[np.int64],
        sources__n: NDArray[np.int32],
    ) -> list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]]: ...

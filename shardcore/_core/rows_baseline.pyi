from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore._core.partition import Placement

# Fused kernels: `kernel["int64_t", "float32_t"]` is the one for those types, in the order in which
# index_t and value_t first appear among the arguments; rows.pxi says what each takes.
class _Fused:
    def __getitem__(self, types: str | tuple[str, ...]) -> Callable[..., Any]: ...

OPERATIONS: dict[str, int]
DIVIDED: dict[str, int]
GIVEN_DIVISORS: int
MOST_IDS: int
segment_reduce: _Fused  # [index, value](table bytes, kind, ids, row_splits, weights, divisors,
#                                 divided, out, asking) -> bool
LONG_RUN_LENGTH: int
RUNS_TOGETHER: int
accumulate: _Fused  # [value](gradients, sources, gains, run_splits, block, out)
gather: _Fused  # [index](table bytes, ids, out bytes)
put: _Fused  # [index](table bytes, ids, value bytes)
row_dots: _Fused  # [index, value](table bytes, kind, ids, row_splits, gradients, out)
scatter: _Fused  # [index](table bytes, kind, dim, ids, value bytes, operation)
sum_long_runs: _Fused  # [value](gradients, sources, gains, run_splits, runs, scratch values,
#                                scratch numbers, out)

def long_runs(run_splits: NDArray[np.int64], runs: NDArray[np.int64]) -> int: ...

class StoredRows:
    def __init__(
        self,
        table__rd: NDArray[np.uint8],
        kind: int,
        dim: int,
        slot_addresses: NDArray[np.int64],
        slot_bytes: NDArray[np.int64],
        slot_kinds: NDArray[np.int64],
        wide: bool,
        writable: bool,
        held: object,
    ) -> None: ...

class UpdateRule:
    def __init__(
        self,
        function: int,
        context: int,
        hyper: NDArray[np.float64],
        by_occurrence: bool,
        block: int,
        block_bytes: int,
        sections: int,
        ahead: int,
        asking: int,
        alone_bytes: int,
        held: object,
    ) -> None: ...

class Updates:
    scratch: int
    def add(
        self,
        stored: StoredRows,
        rule: UpdateRule,
        step: int,
        unique__u: NDArray[np.int64],
        row_ids__u: NDArray[np.int64],
        run_splits: NDArray[np.int64],
        sources__n: NDArray[np.int32],
        gains__n: NDArray[Any] | None,
        gradients__gd: NDArray[Any],
        stochastic: bool,
        seed: int,
        long__h: NDArray[np.int64] | None,
        sums__hd: NDArray[Any] | None,
    ) -> None: ...
    def cut(self, most: int, least: int) -> int: ...
    def make(self, scratch: NDArray[np.uint8], most: int = ...) -> None: ...
    def alone(self, most: int) -> Callable[[], None] | None: ...
    def make_all(self) -> None: ...

class FiniteTests:
    def add(self, values: NDArray[Any]) -> None: ...
    def cut(self, most: int, least: int) -> int: ...
    def make(self, most: int = ...) -> bool: ...
    def make_alone(self, most: int) -> bool | None: ...

class Lookups:
    def add(
        self,
        stored: StoredRows,
        ids__n: NDArray[np.int32] | NDArray[np.int64],
        row_splits: NDArray[np.int64],
        weights__n: NDArray[Any] | None,
        divisors__b: NDArray[Any] | None,
        out__bd: NDArray[Any],
        divided: int = ...,
    ) -> None: ...
    def cut(self, most: int, least: int) -> int: ...
    def make(self, asking: int, most: int = ...) -> bool: ...
    def make_alone(self, asking: int, most: int) -> bool | None: ...
    def share(self, asking: int, sharing: object) -> bool | None: ...

class SharedCall:
    def cut(self, most: int, least: int) -> int: ...
    def make(self) -> None: ...

class GivenBags:
    def __init__(
        self,
        bases__s: NDArray[np.int64],
        placement: Placement | None,
        stride: int,
        kind: int,
        dim: int,
        rows: int,
        asking: int,
        little: object,
        much: object,
        make_on_threads: Callable[[SharedCall], None],
        held: object,
    ) -> None: ...
    def combine(
        self,
        values: NDArray[Any],
        row_splits: NDArray[Any],
        weights: NDArray[Any] | None,
        divided: int,
        out: NDArray[Any],
    ) -> bool: ...

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Fused kernels: `kernel["int64_t", "float32_t"]` is the one for those types, in the order in which
# index_t and value_t first appear among the arguments; rows.pxi says what each takes.
class _Fused:
    def __getitem__(self, types: str | tuple[str, ...]) -> Callable[..., Any]: ...

OPERATIONS: dict[str, int]
segment_reduce: _Fused  # [index, value](table bytes, kind, ids, row_splits, weights, divisors, out,
#                                 into_first) -> bool
LONG_RUN_LENGTH: int
RUNS_TOGETHER: int
accumulate: _Fused  # [value](gradients, sources, gains, run_splits, block, out)
gather: _Fused  # [index](table bytes, ids, out bytes)
put: _Fused  # [index](table bytes, ids, value bytes)
row_dots: _Fused  # [index, value](table bytes, kind, ids, row_splits, gradients, out)
scatter: _Fused  # [index](table bytes, kind, dim, ids, value bytes, operation)
update: _Fused  # [value](table bytes, kind, unique, row_ids, run_splits, sources, gains, gradients,
#                         slot_addresses, slot_bytes, slot_kinds, function, context, hyper, step,
#                         by_occurrence, stochastic, seed, block, sections,
#                         scratch, pointers, long_runs, sums)
all_finite: _Fused  # [value](values) -> bool
sum_long_runs: _Fused  # [value](gradients, sources, gains, run_splits, runs, scratch values,
#                                scratch numbers, out)

def long_runs(run_splits: NDArray[np.int64], runs: NDArray[np.int64]) -> int: ...
def update_room(dim: int, slots: int, converted: int) -> tuple[int, int]: ...

from collections.abc import Callable

# Fused kernels, chosen by type: kernel["int32_t" | "int64_t", "uint32_t" | "uint64_t"].
class _Fused:
    def __getitem__(self, types: str | tuple[str, ...]) -> Callable[..., int]: ...

COUNTERS: int
sort_rows: _Fused  # [index, key](rows, sources, key_space, source_space, counters) -> plane
unique_runs: _Fused  # [key](sorted, unique, run_splits) -> how many

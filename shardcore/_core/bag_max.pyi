from collections.abc import Callable

# Fused kernels: `kernel["float32_t", "int32_t"]` is the one for those types; bag_max.pyx says what
# each takes.
class _Fused:
    def __getitem__(self, types: tuple[str, str]) -> Callable[..., None]: ...

max_of_bags: _Fused  # [value, index](rows, row_splits, out, winners)
at_winners: _Fused  # [value, index](gradients, winners, row_splits, out)

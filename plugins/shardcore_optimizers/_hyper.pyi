from typing import Final

COMMON_HYPER: Final[tuple[str, ...]]
OWN_HYPER: Final[dict[str, tuple[str, ...]]]
BITS: Final[dict[str, int]]
CORRECTIONS: Final[tuple[str, ...]]
PARTIAL_SUMS: Final[int]

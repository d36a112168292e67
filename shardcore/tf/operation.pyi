from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

__all__ = ["NAME", "calls", "register"]

NAME: Final[str]

calls: Final[
    dict[
        int,
        tuple[
            Callable[..., Sequence[Any]],
            tuple[np.dtype[Any], ...],
            tuple[tuple[np.dtype[Any], int], ...],
        ],
    ]
]

def register(path: bytes) -> bool: ...

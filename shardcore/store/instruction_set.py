"""Which of the compiled bodies of a kernel runs on this processor, and how it goes through rows.

``setup.py`` compiles ``rows.pxi`` (and the optimizers' ``_update.pxi``) for the baseline of the
platform and, on x86, for x86-64-v3 (AVX2) and v4 (AVX-512). All compute the same bits. The best one
the processor has is used; SHARDCORE_INSTRUCTION_SET=baseline|v3|v4 asks for another.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType
from typing import Final

from shardcore._core import cpu
from shardcore.errors import ShardcoreValueError

__all__ = [
    "INTO_FIRST",
    "NAME",
    "NEEDS",
    "REASON",
    "UPDATE_AHEAD",
    "UPDATE_BLOCK",
    "UPDATE_BLOCK_BYTES",
    "UPDATE_SECTIONS",
    "best_module",
]

NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "v4": ("avx2", "bmi", "bmi2", "fma", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "v3": ("avx2", "bmi", "bmi2", "fma"),
    "baseline": (),
}
"""Instruction set -> the processor features it needs; the best first."""

_VARIABLE: Final = "SHARDCORE_INSTRUCTION_SET"


def _choose(asked: str | None, features: dict[str, bool], built: set[str]) -> tuple[str, str]:
    if asked:
        if asked not in NEEDS:
            raise ShardcoreValueError(
                f"{_VARIABLE} must be one of {', '.join(NEEDS)}, got {asked!r}"
            )
        lacking = [feature for feature in NEEDS[asked] if not features.get(feature, False)]
        if lacking:
            raise ShardcoreValueError(
                f"{_VARIABLE}={asked} needs {', '.join(lacking)}, which this processor lacks"
            )
        if asked not in built:
            raise ShardcoreValueError(f"{_VARIABLE}={asked} was not compiled on this platform")
        return asked, f"asked for by {_VARIABLE}"
    for name, needs in NEEDS.items():
        if name in built and all(features.get(feature, False) for feature in needs):
            return name, "the best that is compiled and that this processor has"
    raise AssertionError("the baseline needs nothing and is always compiled")


def _built() -> set[str]:
    prefix = "shardcore._core.rows"
    return {name for name in NEEDS if importlib.util.find_spec(f"{prefix}_{name}") is not None}


INTO_FIRST: Final[bool] = cpu.is_amd()
"""Whether the first cache takes rows that are asked for far ahead.

AMD's does: on Zen 5 sums of rows so asked for take 0.6 to 0.9 of the time that the second cache
allows. Intel's, with its few miss buffers, holds everything up.
"""

UPDATE_BLOCK: Final[int] = 16 if cpu.is_amd() else 32
"""Most rows handed to an optimizer's function at a time."""

UPDATE_BLOCK_BYTES: Final[int] = 2560 if cpu.is_amd() else 1 << 20
"""Most bytes of them and of their slots.

On Zen 5 blocks of more take up to twice the time: what is asked for for the rows that come, and
what the function does, do not overlap unless they alternate.
"""

UPDATE_AHEAD: Final[int] = 16 if cpu.is_amd() else 32
"""Rows between asking for one and updating it."""

UPDATE_SECTIONS: Final[int] = 1 if cpu.is_amd() else 4
"""Ranges of rows that an update goes through side by side.

Measured with `UPDATE_BLOCK` on Zen 5, where 1 and 16 take 0.8 to 1.0 of the time of 4 and 32,
and on an Intel processor, where one range takes a fifth longer than four.
"""

NAME, REASON = _choose(os.environ.get(_VARIABLE), cpu.features(), _built())


def best_module(prefix: str) -> ModuleType:
    """Import and return ``<prefix>_<NAME>``, the body compiled for this processor.

    Parameters
    ----------
    prefix : str
        Full module name without the instruction set, such as ``"shardcore._core.rows"``.

    Examples
    --------
    >>> best_module("shardcore._core.rows").__name__ == f"shardcore._core.rows_{NAME}"
    True
    """
    return importlib.import_module(f"{prefix}_{NAME}")

"""Which of the compiled bodies of a kernel runs on this processor.

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
    "NAME",
    "NEEDS",
    "REASON",
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

"""The compiled updates, out of the module that was built for the best instruction set here.

What they and the pure forms must agree on is written there, in _update.pxi, and read from here.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any, Final

from shardcore.dtypes import as_dtype, working_dtype
from shardcore.optimizer import UpdateFunction
from shardcore.store import best_module

__all__ = ["COMMON_HYPER", "COMPILED", "compiled_update", "hyper_of"]

COMPILED: Final[ModuleType] = best_module("shardcore_optimizers._update")

COMMON_HYPER: Final[tuple[str, ...]] = COMPILED.COMMON_HYPER
"""The first places of ``hyper``."""


def hyper_of(formula: str) -> tuple[str, ...]:
    """Return the names of what a formula reads in ``hyper``, in order: what all do, its own."""
    own: tuple[str, ...] = COMPILED.OWN_HYPER[formula]
    return (*COMMON_HYPER, *own)


def compiled_update(formula: str, table_dtype: Any) -> UpdateFunction:
    """Return the compiled update of a formula for tables of `table_dtype`."""
    return _compiled(formula, working_dtype(as_dtype(table_dtype)))


@lru_cache(maxsize=64)
def _compiled(formula: str, working: Any) -> UpdateFunction:
    capsules = getattr(COMPILED, formula)
    return UpdateFunction.from_capsule(capsules[working.name])

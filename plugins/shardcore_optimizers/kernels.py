"""The compiled updates, out of the module that was built for the best instruction set here."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any, Final

from shardcore.dtypes import as_dtype, working_dtype
from shardcore.optimizer import UpdateFunction

__all__ = ["compiled_update"]

_ROW_BY_ROW: Final = frozenset(
    ("adagrad", "adagrad_momentum", "adam", "ftrl", "momentum_sgd", "rmsprop", "sgd")
)
"""Formulas in which no column waits for others; what sums a row first gains from blocks of them."""


def compiled_update(formula: str, table_dtype: Any) -> UpdateFunction:
    """Return the compiled update of a formula for tables of `table_dtype`."""
    return _compiled(formula, working_dtype(as_dtype(table_dtype)))


@lru_cache(maxsize=64)
def _compiled(formula: str, working: Any) -> UpdateFunction:
    # Here, not above: only tables that train on a CPU need the compiled modules.
    from shardcore.store import best_module

    capsules = getattr(best_module("shardcore_optimizers._update"), formula)
    function = UpdateFunction.from_capsule(capsules[working.name])
    return dataclasses.replace(function, row_by_row=formula in _ROW_BY_ROW)

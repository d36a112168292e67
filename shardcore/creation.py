"""Who makes a new variable: nobody in particular, or whoever asked to be called instead."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

__all__ = ["VariableCreator", "variable_creator"]

VariableCreator: TypeAlias = Callable[[Callable[[], Any]], Any]
"""Given a function that makes one variable in the ordinary way, returns what the caller gets."""

variable_creator: Final[ContextVar[VariableCreator | None]] = ContextVar(
    "shardcore_variable_creator", default=None
)
"""What `create_variable` hands its work to, in this thread or task; None: it does it itself."""

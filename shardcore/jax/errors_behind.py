"""Errors of programs that ran behind their thread, which JAX would raise again for ever.

Ordered calls of a thread wait for each other by a token, which each program hands to the next. One
that failed hands its error on, and every ordered call after it raises that error again. The tokens
are forgotten here: a thread that has none starts anew.
"""

from __future__ import annotations

import importlib
from typing import Any

import jax

from shardcore.errors import UnavailableError

__all__ = ["take_error"]


def take_error() -> Exception | None:
    """Wait for the programs of this thread, and return the error of one that failed, once.

    For programs that run behind the thread that called them: on a GPU or TPU, on several devices,
    or where their input is still computed. Without it JAX raises the error again from each ordered
    call that the thread makes. Tables are as they were before the call that failed.

    Returns
    -------
    jax.errors.JaxRuntimeError or None
        None if none failed.

    Raises
    ------
    UnavailableError
        If one failed, and this version of JAX keeps it elsewhere: go on in another thread then.

    Examples
    --------
    >>> take_error() is None
    True
    """
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        found: Exception = error
        _tokens(found).clear()
        return found
    return None


def _tokens(error: Exception) -> Any:
    """Return where JAX keeps the tokens of this thread; it has no public name for that."""
    try:
        tokens = importlib.import_module("jax._src.dispatch").runtime_tokens
    except (ImportError, AttributeError):
        tokens = None
    if not hasattr(tokens, "clear"):
        raise UnavailableError(
            f"jax {jax.__version__} keeps the errors of a thread where shardcore does not find "
            "them: go on in another thread"
        ) from error
    return tokens

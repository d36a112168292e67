"""The package jax, or an error that says that it is missing. Imported before all that uses it."""

from __future__ import annotations

from shardcore.errors import UnavailableError
from shardcore.extras import pip_install

__all__ = ["JaxMissingError"]


class JaxMissingError(UnavailableError, ImportError):
    """JAX is not installed; an ImportError, as of every import that fails."""


try:
    import jax  # noqa: F401  # asked for first, so that its absence is said in one sentence
except ImportError as error:
    raise JaxMissingError(f"shardcore.jax needs the package jax: {pip_install('jax')}") from error

"""Calls of the engine out of JAX's operations: once each, in the order of the program.

Under `jax.jit` a call is an ordered `io_callback`: XLA neither drops nor repeats it, nor changes
the order of two. Outside, where the arrays are there, it is a call, and raises what the engine
raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.experimental import io_callback

from shardcore.errors import ShardcoreValueError

__all__ = ["call_on_host"]


def call_on_host(function: Callable[..., Any], results: Any, *arguments: Any) -> Any:
    """Call a function with NumPy arrays, now or whenever the program runs that is being traced.

    Parameters
    ----------
    function : callable
        Takes the arguments with NumPy arrays in them. Called once each time.
    results : pytree of jax.ShapeDtypeStruct
        Of what it returns.
    *arguments : pytrees of arrays

    Raises
    ------
    ShardcoreValueError
        If `jax.vmap` maps an argument, or one is differentiated.

    Examples
    --------
    >>> call_on_host(np.add, jax.ShapeDtypeStruct((2,), np.int32), jnp.arange(2), jnp.ones(2, int))
    Array([1, 2], dtype=int32)
    """

    def with_arrays(*given: Any) -> Any:
        return function(*jax.tree.map(np.asarray, given))

    if _is_traced(arguments):
        arguments = jax.tree.map(_plain, arguments)
        return io_callback(with_arrays, results, *arguments, ordered=True)
    jax.effects_barrier()  # programs that were started earlier come first
    return jax.tree.map(jnp.asarray, with_arrays(*arguments))


def _is_traced(arguments: Any) -> bool:
    """Return whether operations are written down, as under `jax.jit`, or arguments are stand-ins.

    Under `jax.jit` arguments may all be constants: then an operation of no arguments tells.
    """
    return any(
        isinstance(leaf, jax.core.Tracer) for leaf in (*jax.tree.leaves(arguments), jnp.zeros(()))
    )


def _same(array: Any) -> Any:
    return array


def _refuse_map(axis_size: int, mapped: Any, array: Any) -> Any:
    raise ShardcoreValueError(
        "shardcore.jax.lookup cannot be mapped by jax.vmap, nor by what uses it, as jax.jacrev "
        "does: look the whole batch up, ids of shape (batch, ids per bag), and map what follows"
    )


def _refuse_derivative(primals: Any, tangents: Any) -> Any:
    raise ShardcoreValueError(
        "shardcore.jax.lookup has first derivatives only: its backward updates rows, which cannot "
        "be differentiated; where a loss is made of gradients, look up without the token"
    )


_unmapped = jax.custom_batching.custom_vmap(_same)
_unmapped.def_vmap(_refuse_map)
_plain = jax.custom_jvp(_unmapped)
_plain.defjvp(_refuse_derivative)

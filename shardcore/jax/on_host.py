"""Calls of the engine out of JAX's operations: once each, in the order of the program.

Under `jax.jit` a call that may change rows, or see them changed, is *ordered*, as an `io_callback`
can be: XLA neither drops nor repeats it, nor changes the order of two. One that reads what nothing
changes is like a `pure_callback`, and JAX starts its program without a look at those before it.
Outside, where the arrays are there, it is a call, and raises what the engine raises.

On one CPU both are an operation of their own: JAX's two put their arguments on a device and take
them back, which takes longer than a lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import jax
import numpy as np
from jax import numpy as jnp
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import mlir

from shardcore.errors import ShardcoreValueError

__all__ = ["call_on_host"]


def call_on_host(
    function: Callable[..., Any], results: Any, *arguments: Any, ordered: bool = True
) -> Any:
    """Call a function with NumPy arrays, now or whenever the program runs that is being traced.

    Parameters
    ----------
    function : callable
        Takes the arguments with NumPy arrays in them, which are another's once it has returned.
        Called once each time.
    results : pytree of jax.ShapeDtypeStruct
        Of what it returns.
    *arguments : pytrees of arrays
    ordered : bool
        Whether it is called once each time that the program runs, in the order of the program. Else
        it may be called more often or, where nothing needs what it returns, not at all.

    Raises
    ------
    ShardcoreValueError
        If `jax.vmap` maps an argument, or one is differentiated.

    Examples
    --------
    >>> call_on_host(np.add, jax.ShapeDtypeStruct((2,), np.int32), jnp.arange(2), jnp.ones(2, int))
    Array([1, 2], dtype=int32)
    """
    shapes, structure = jax.tree.flatten(results)
    leaves, form = jax.tree.flatten(arguments)

    def call(*given: Any) -> list[Any]:
        found = function(*jax.tree.unflatten(form, map(np.asarray, given)))
        return list(jax.tree.leaves(found))

    if _is_traced(leaves):
        avals = tuple([jax.core.ShapedArray(one.shape, one.dtype) for one in shapes])
        plain = [_plain(leaf) for leaf in leaves]
        found = _CALL.bind(*plain, call=call, avals=avals, ordered=ordered)
    else:
        found = _called_now(*leaves, call=call)
    return jax.tree.unflatten(structure, found)


def _is_traced(leaves: Sequence[Any]) -> bool:
    """Return whether operations are written down, as under `jax.jit`, or arguments are stand-ins.

    Under `jax.jit` arguments may all be constants: then an operation of no arguments tells.
    """
    return any(isinstance(leaf, jax.core.Tracer) for leaf in (*leaves, jnp.zeros(())))


# --- the operation -------------------------------------------------------------------------------

_CALL: Final[Any] = Primitive("shardcore_call")
_CALL.multiple_results = True


def _called_now(*arrays: Any, call: Callable[..., list[Any]], **_: Any) -> list[Any]:
    jax.effects_barrier()  # programs that were started earlier come first
    return [jnp.asarray(one) for one in call(*arrays)]


def _described(*_: Any, avals: Sequence[Any], ordered: bool, **__: Any) -> Any:
    return list(avals), {_order()} if ordered else set()


@cache
def _order() -> Any:
    """Return the effect of JAX's own ordered calls, for which it has no public name."""
    (effect,) = jax.make_jaxpr(lambda: io_callback(lambda: None, None, ordered=True))().effects
    return effect


def _lowered(
    ctx: Any,
    *operands: Any,
    call: Callable[..., list[Any]],
    avals: Sequence[Any],
    ordered: bool,
) -> Any:
    if not _is_one_cpu(ctx.module_context):

        def by_jax(*arrays: Any) -> Any:
            if ordered:
                return io_callback(call, list(avals), *arrays, ordered=True)
            return jax.pure_callback(call, list(avals), *arrays)

        return mlir.lower_fun(by_jax, multiple_results=True)(ctx, *operands)
    token = ctx.tokens_in.get(_order()) if ordered else None
    found, token, _ = mlir.emit_python_callback(
        ctx,
        call,
        token,
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=ordered,
        returns_token=ordered,
    )
    if ordered:
        tokens = mlir.TokenSet({_order(): token})
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(tokens))
    return found


def _is_one_cpu(module: Any) -> bool:
    """Return whether a program is for one device, and that the CPU."""
    context = module.axis_context
    alone = isinstance(context, mlir.ShardingContext) and context.num_devices == 1
    return alone and tuple(module.platforms) == ("cpu",)


_CALL.def_impl(_called_now)
_CALL.def_effectful_abstract_eval(_described)
mlir.register_lowering(_CALL, _lowered, cacheable=False)


# --- what JAX would make of the arguments --------------------------------------------------------


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

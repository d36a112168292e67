"""The door for JAX: lookups in an engine's tables, and their updates, in JAX's functions.

For engines whose tables are in the memory of the host: the backends ``cpu`` and ``sim``, and those
of third parties that deal in NumPy arrays. `Ragged` becomes a pytree.

Imported only when asked for: ``import shardcore.jax``. It needs the package ``jax``.

::

    lookup, token                function      the lookup as JAX differentiates it
    take_error                   errors_behind how a thread goes on after a program that failed
                                 structure     features and weights, checked by shape and dtype
                                 ragged        Ragged as a pytree
                                 on_host       calls of the engine out of JAX's operations
                                 waiting       lookups between forward and backward

Examples
--------
>>> import jax
>>> import jax.numpy as jnp
>>> import shardcore as sc
>>> import shardcore.jax
>>> table = sc.TableConfig(10, 2, initializer=sc.initializers.RowId(), combiner="sum", name="t")
>>> engine = sc.ShardedEmbedding({"clicks": sc.FeatureConfig(table)}, sc.optimizers.SGD(0.5))
>>> lookup = shardcore.jax.lookup(engine)
>>> params = {"w": jnp.ones(2), "token": shardcore.jax.token(engine)}
>>> def loss(params, ids):
...     return (lookup({"clicks": ids}, params["token"])["clicks"] @ params["w"]).sum()
>>> value, grads = jax.jit(jax.value_and_grad(loss))(params, jnp.array([[1, 2], [4, 4]]))
>>> float(value), float(grads["token"]), grads["w"]
(22.0, 0.0, Array([11., 11.], dtype=float32))
>>> engine.step, engine.tables["t"][:5, 0]
(1, array([0. , 0.5, 1.5, 3. , 3. ], dtype=float32))
"""

from __future__ import annotations

from shardcore.jax._needed import JaxMissingError
from shardcore.jax.errors_behind import take_error
from shardcore.jax.function import LookupFunction, lookup, token

__all__ = ["JaxMissingError", "LookupFunction", "lookup", "take_error", "token"]

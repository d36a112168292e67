"""The lookup as JAX differentiates it: activations forward, an update of the rows backward.

Ids are integers, and tables no arrays of JAX: nothing that goes into a lookup has a gradient. The
token has one, which is zero, and asking for it is what brings the backward about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero

from shardcore.engine.embedding import ShardedEmbedding
from shardcore.errors import (
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
    shown,
)
from shardcore.jax.on_host import call_on_host
from shardcore.jax.structure import Batch, Structure
from shardcore.jax.waiting import Waiting
from shardcore.validation.shapes import as_count

__all__ = ["LookupFunction", "lookup", "token"]


class LookupFunction:
    """A lookup of one engine, to be called in JAX's functions. Made by `lookup`.

    Parameters
    ----------
    engine : ShardedEmbedding
    in_flight : int
        As in `lookup`.
    """

    def __init__(self, engine: ShardedEmbedding, in_flight: int = 64) -> None:
        _check_engine(engine, "lookup")
        self._engine = engine
        self._structure = Structure(engine)
        self._learns = any(feature.spec.optimizer for feature in self._structure.features)
        self._waiting = Waiting(as_count(in_flight, "in_flight"))
        self._differentiable = jax.custom_vjp(self._primal)
        self._differentiable.defvjp(self._forward, self._backward, symbolic_zeros=True)

    @property
    def engine(self) -> ShardedEmbedding:
        """The engine."""
        return self._engine

    def __repr__(self) -> str:
        return f"<shardcore.jax.lookup of {self._engine!r}>"

    def __call__(self, features: Any, token: Any = None, weights: Any = None) -> Any:
        """Look a batch up; where the token is differentiated, backward updates its rows.

        Parameters
        ----------
        features : the structure of the configuration
            Per feature integers: an array of shape (batch,), one id per bag, or (..., ids per bag);
            a `Ragged`; or a tuple (values, row_splits). Arrays of JAX or NumPy.
        token : array of shape (), optional
            What `token` returned, among the parameters that are differentiated. None: activations
            only.
        weights : the structure of the configuration, optional
            Leaves None, a `Ragged` of floats, or an array aligned with the ids.

        Returns
        -------
        the structure of the configuration
            Of `jax.Array`, (*batch shape, dim), float32 (float64 for float64 tables); for a
            sequence (*batch shape, max_sequence_length, dim).

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If what is known before arrays have values breaks a rule: structure, form, shape, dtype.
            Raised while the program is traced.
        ShardcoreError
            As `ShardedEmbedding.lookup`. Out of a compiled program it comes as a
            `jax.errors.JaxRuntimeError`, at the end of whose message it stands.
        """
        ids, values, splits = self._structure.read(features, weights)
        self._structure.activations(ids)  # raises in the caller's line
        if token is not None:
            _check_token(token)
        found = self._differentiable(token, values, (ids, splits))
        return self._structure.nested(found)

    # --- what JAX traces -------------------------------------------------------------------------

    def _primal(self, token: Any, values: Any, rest: Any) -> Any:
        ids, splits = rest
        shapes = self._structure.activations(ids)
        batch = ids, values, splits
        return call_on_host(self._look_up, shapes, batch, ordered=self._learns)

    def _forward(self, token: Any, values: Any, rest: Any) -> Any:
        # Each array comes with whether it is differentiated, which is known while tracing.
        updates = token is not None and token.perturbed
        wanted = [value is not None and value.perturbed for value in values]
        self._check_wanted(wanted, updates)
        values = [None if value is None else value.value for value in values]
        rest = jax.tree.map(lambda one: one.value, rest)
        if not updates:
            return self._primal(None, values, rest), (None, None)
        ids, splits = rest
        shapes = self._structure.activations(ids)
        number = jax.ShapeDtypeStruct((), np.int32)
        number, found = call_on_host(self._start, (number, shapes), (ids, values, splits))
        kept = [value if want else None for value, want in zip(values, wanted, strict=True)]
        return found, (number, kept)

    def _backward(self, kept: Any, gradients: Any) -> Any:
        number, values = kept
        if number is None:
            return None, None, None
        # None, not zeros, for what the loss leaves out: no row is touched.
        gradients = [
            None if isinstance(gradient, SymbolicZero) or not feature.spec.optimizer else gradient
            for feature, gradient in zip(self._structure.features, gradients, strict=True)
        ]
        wanted = [
            None
            if value is None or gradient is None
            else jax.ShapeDtypeStruct(value.shape, value.dtype)
            for value, gradient in zip(values, gradients, strict=True)
        ]
        found = call_on_host(self._apply(wanted), wanted, number, gradients)
        return None, found, None

    def _check_wanted(self, wanted: Sequence[bool], updates: bool) -> None:
        for feature, want in zip(self._structure.features, wanted, strict=True):
            if want and not updates:
                raise ShardcoreValueError(
                    f"{feature.weights_path} is differentiated, and the token is not: gradients of "
                    "weights come with the update; give the token too, among the parameters that "
                    "are differentiated, or jax.lax.stop_gradient of the weights"
                )
            if want and feature.spec.optimizer is None:
                raise ShardcoreValueError(
                    f"{feature.weights_path} is differentiated, and table {feature.table!r} has no "
                    "optimizer: gradients of weights come with the update; give "
                    "jax.lax.stop_gradient of the weights"
                )

    # --- what runs on the host -------------------------------------------------------------------

    def _look_up(self, batch: Batch) -> list[Any]:
        return self._arrays(self._engine(*self._structure.for_engine(batch)))

    def _start(self, batch: Batch) -> tuple[Any, list[Any]]:
        handle = self._engine.lookup(*self._structure.for_engine(batch))
        found = self._arrays(handle.activations)
        return np.int32(self._waiting.add(handle)), found

    def _apply(self, wanted: Sequence[Any]) -> Any:
        def apply(number: Any, gradients: Sequence[Any]) -> list[Any]:
            handle = self._waiting.take(int(number))
            none = all(gradient is None for gradient in gradients)
            given = None if none else self._structure.nested(gradients)
            try:
                found = handle.apply_gradients(given, weight_gradients=any(wanted))
            finally:
                handle.drop()  # one that was refused: no backward comes again
            if not any(wanted):
                return [None] * len(wanted)
            return [
                None if want is None else np.asarray(one).reshape(want.shape).astype(want.dtype)
                for one, want in zip(self._structure.flat(found), wanted, strict=True)
            ]

        return apply

    def _arrays(self, activations: Any) -> list[Any]:
        return [np.asarray(one) for one in self._structure.flat(activations)]


def lookup(engine: ShardedEmbedding, in_flight: int = 64) -> LookupFunction:
    """Return a function that looks batches up in an engine's tables, for use in JAX's functions.

    It runs as it is, under `jax.jit`, and under `jax.grad` and its relatives. Where its token is
    differentiated, each lookup is a step of the tables' optimizers, in its backward: once, with
    the fused update of the engine.

    Parameters
    ----------
    engine : ShardedEmbedding
        Of a backend whose tables are in the memory of the host.
    in_flight : int
        How many lookups may wait for their backward. One more drops the oldest, whose backward
        then raises; a forward whose backward never comes waits until then.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or the tables are on devices.

    Examples
    --------
    >>> import shardcore as sc
    >>> table = sc.TableConfig(5, 2, initializer=sc.initializers.RowId(), combiner="sum", name="t")
    >>> engine = sc.ShardedEmbedding(sc.FeatureConfig(table), sc.optimizers.SGD(0.5))
    >>> look_up = lookup(engine)
    >>> look_up(jnp.array([[1, 2], [4, 4]]))
    Array([[3., 3.],
           [8., 8.]], dtype=float32)
    >>> @jax.jit
    ... @jax.value_and_grad
    ... def loss(token, ids):
    ...     return look_up(ids, token).sum()
    >>> loss(token(engine), jnp.array([[1, 2], [4, 4]]))
    (Array(22., dtype=float32), Array(0., dtype=float32))
    >>> engine.tables["t"][:, 0]
    array([0. , 0.5, 1.5, 3. , 3. ], dtype=float32)
    """
    return LookupFunction(engine, in_flight)


def token(engine: ShardedEmbedding) -> jax.Array:
    """Return a float32 zero to keep among a model's parameters: the updates of tables hang on it.

    Its gradient is zero, so an optimizer leaves it as it is.

    Parameters
    ----------
    engine : ShardedEmbedding

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If it is none, its tables are on devices, or none of them has an optimizer.

    Examples
    --------
    >>> import shardcore as sc
    >>> feature = sc.FeatureConfig(sc.TableConfig(5, 2))
    >>> token(sc.ShardedEmbedding(feature, sc.optimizers.SGD(1.0)))
    Array(0., dtype=float32)
    """
    _check_engine(engine, "token")
    if all(feature.spec.optimizer is None for feature in Structure(engine).features):
        raise ShardcoreRuntimeError(
            "shardcore.jax.token needs a table with an optimizer, and none has one: give the "
            "engine optimizer=, or look up without a token"
        )
    return jnp.zeros((), jnp.float32)


def _check_engine(engine: Any, function: str) -> None:
    if not isinstance(engine, ShardedEmbedding):
        raise ShardcoreTypeError(f"engine must be a ShardedEmbedding, got {shown(engine)}")
    if engine.device_arrays:
        raise ShardcoreValueError(
            f"shardcore.jax.{function} is for tables in the memory of the host, and those of "
            f"backend {engine.config()['backend']!r} are on its devices: call engine.lookup and "
            "the handle's apply_gradients outside jax.jit, which take and give arrays that stay "
            "there"
        )


def _check_token(given: Any) -> None:
    dtype = getattr(given, "dtype", None)
    if dtype is None or given.shape != () or not jnp.issubdtype(dtype, jnp.floating):
        raise ShardcoreTypeError(
            "token must be what shardcore.jax.token(engine) returned, a float of shape (), got "
            + (shown(given) if dtype is None else f"{dtype} of shape {given.shape}")
        )

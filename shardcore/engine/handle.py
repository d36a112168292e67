"""A lookup in the hands of its caller, who brings its gradients, or lets it go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from shardcore.engine.in_flight import APPLIED, DROPPED, READ, Pending
from shardcore.engine.training import Training
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, shown

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with a default, which Python has from 3.13

    Activations = TypeVar("Activations", default=Any)
else:
    from typing import TypeVar

    Activations = TypeVar("Activations")

__all__ = ["Activations", "Lookup", "pending_of"]


class Lookup(Generic[Activations]):
    """A batch that was looked up: its activations, and the way back for their gradients.

    Made by `ShardedEmbedding.lookup`. Any number may be in flight, in any order. Each is applied
    once at most, alone by `apply_gradients` or with others by `ShardedEmbedding.apply`; one that
    nobody refers to any more is dropped, with all that it holds.

    Notes
    -----
    The calls of all lookups of an engine may come from any thread; they are made one at a time, in
    line with `enqueue`, `dequeue` and `apply_gradients`. `drop` waits for nothing, so a finalizer
    may call it. An interrupt leaves a lookup either applied, its step counted, or as it was.

    A lookup is dropped by its engine too: where an earlier call failed in the background or an
    update was refused, and by a restore. After a fork it is the parent's. Calls then raise
    `ShardcoreRuntimeError`, and say which of these it was; so they do once the engine is closed.

    Examples
    --------
    >>> import numpy as np
    >>> import shardcore as sc
    >>> user = sc.TableConfig(5, 2, initializer=sc.initializers.RowId(), name="user")
    >>> engine = sc.ShardedEmbedding(sc.FeatureConfig(user), sc.optimizers.SGD(learning_rate=1.0))
    >>> query, item = engine.lookup([[1]]), engine.lookup([[4], [1]])
    >>> item.activations
    array([[4., 4.],
           [1., 1.]], dtype=float32)
    >>> item.apply_gradients(np.ones((2, 2)))
    >>> query
    <Lookup: for training, in flight>
    >>> query.drop()
    >>> engine.step, engine.in_flight
    (1, 0)
    """

    __slots__ = ("__weakref__", "_pending", "_training")

    def __init__(self, training: Training, pending: Pending) -> None:
        self._training = training
        self._pending = pending

    @property
    def activations(self) -> Activations:
        """The activations, in the structure of the configuration; the same arrays every time.

        With ``pipeline=True`` the first time waits for the lookup. They can be had after
        `apply_gradients` too, not after `drop`.

        Raises
        ------
        ShardcoreRuntimeError
            If it was dropped, an earlier call failed in the background, or the engine is closed.
        """
        found: Activations = self._training.activations(self._pending)
        return found

    def apply_gradients(self, gradients: Any, weight_gradients: bool = False) -> Any:
        """Update every row that the batch names, once, with its table's optimizer.

        Parameters
        ----------
        gradients, weight_gradients
            As in `ShardedEmbedding.apply_gradients`. None for all drops the lookup.

        Returns
        -------
        None, or the structure of the configuration
            As there.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            As there; the lookup can still be applied.
        UpdateRefusedError
            As there; all lookups in flight are dropped then.
        ShardcoreRuntimeError
            If it was applied or dropped already or is of ``training=False``, an earlier call failed
            in the background, or the engine is closed.
        """
        return self._training.apply_one(self._pending, gradients, weight_gradients)

    def drop(self) -> None:
        """Let go of what the lookup holds; nothing follows. One that has ended stays as it is.

        A call of another thread that applies it meanwhile goes on.
        """
        self._pending.end(DROPPED)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ShardcoreTypeError(
            "a Lookup cannot be copied or pickled: its gradients are applied once; look the batch "
            "up again"
        )

    def __repr__(self) -> str:
        pending = self._pending
        state = {"": "in flight", APPLIED: "applied", READ: "read"}.get(pending.ended, "dropped")
        return f"<Lookup: {'for' if pending.training else 'without'} training, {state}>"


def pending_of(pairs: Any, training: Training) -> list[tuple[Pending, Any]]:
    """Return what is pending, and its gradients, of pairs that a caller gives.

    Parameters
    ----------
    pairs : list or tuple of (Lookup, gradients)
    training : Training
        Of the engine that is asked.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If they are no such pairs, or a lookup is another engine's, or stands there twice.
    """
    if not isinstance(pairs, list | tuple):
        raise ShardcoreTypeError(
            f"pairs must be a list of (lookup, gradients), got {type(pairs).__name__}"
        )
    if not pairs:
        raise ShardcoreValueError("pairs must hold at least one (lookup, gradients), got none")
    found: list[tuple[Pending, Any]] = []
    places: dict[Pending, int] = {}
    for at, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ShardcoreTypeError(f"pairs[{at}] must be (lookup, gradients), got {shown(pair)}")
        lookup, gradients = pair
        if not isinstance(lookup, Lookup):
            raise ShardcoreTypeError(f"pairs[{at}][0] must be a Lookup, got {shown(lookup)}")
        if lookup._training is not training:
            raise ShardcoreValueError(
                f"pairs[{at}][0] must be a lookup of this engine, got one of another"
            )
        first = places.setdefault(lookup._pending, at)
        if first != at:
            raise ShardcoreValueError(
                f"pairs[{at}][0] must not be that of pairs[{first}]: a lookup is applied once"
            )
        found.append((lookup._pending, gradients))
    return found

"""The lookups whose gradients may still come, by number.

A program that XLA has compiled can carry numbers from forward to backward, and no Python objects.
Whether a backward follows is not known in the forward: a loss may leave the activations out. So
there is a bound, and the oldest goes.
"""

from __future__ import annotations

import threading

from shardcore.engine.handle import Lookup
from shardcore.errors import ShardcoreRuntimeError

__all__ = ["Waiting"]

_NUMBERS = 1 << 31  # int32: JAX has no wider integers unless it is told to


class Waiting:
    """Lookups that wait for their gradients.

    Parameters
    ----------
    limit : int
        How many at most; one more drops the oldest.

    Examples
    --------
    >>> import shardcore as sc
    >>> feature = sc.FeatureConfig(sc.TableConfig(5, 2))
    >>> engine = sc.ShardedEmbedding(feature, sc.optimizers.SGD(1.0))
    >>> waiting = Waiting(8)
    >>> number = waiting.add(engine.lookup([[1]]))
    >>> waiting.take(number)
    <Lookup: for training, in flight>
    >>> len(waiting)
    0
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lookups: dict[int, Lookup] = {}  # in the order in which they came
        self._next = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._lookups)

    def add(self, lookup: Lookup) -> int:
        """Return the number under which a lookup waits from now on."""
        with self._lock:
            while len(self._lookups) >= self._limit:
                self._lookups.pop(next(iter(self._lookups))).drop()
            number, self._next = self._next, (self._next + 1) % _NUMBERS
            self._lookups[number] = lookup
            return number

    def take(self, number: int) -> Lookup:
        """Return the lookup of a number, which does not wait any more.

        Raises
        ------
        ShardcoreRuntimeError
            If none has that number.
        """
        with self._lock:
            lookup = self._lookups.pop(number, None)
        if lookup is None:
            raise ShardcoreRuntimeError(
                "backward came for a lookup that does not wait for it: either it came before, or "
                f"more than {self._limit} lookups waited and this was the oldest; look the batch "
                "up again, or give shardcore.jax.lookup a larger in_flight="
            )
        return lookup

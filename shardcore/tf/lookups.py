"""Lookups of an engine as TensorFlow sees them: activations forward, an update of rows backward.

Eagerly the engine is called as it is; in a graph, by ``tf.numpy_function``. From a forward to its
backward goes a number; the engine's `Lookup` of that number waits here. A graph does not tell that
a forward leads nowhere, so few of them wait: one that had to go is looked up again from its ids,
which makes the same update.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from shardcore.engine.embedding import ShardedEmbedding
from shardcore.engine.handle import Lookup
from shardcore.errors import ShardcoreRuntimeError
from shardcore.tf.leaves import Leaf, read_ids, read_weights

__all__ = ["Lookups"]

_WAITING: Final = 8  # lookups without their gradients: towers, micro-batches
_REMEMBERED: Final = 1024  # numbers of lookups that were applied


class Lookups:
    """The lookups of one engine.

    Parameters
    ----------
    engine : ShardedEmbedding
        Built.
    owner : str
        The layer's class, for messages.
    """

    def __init__(self, engine: ShardedEmbedding, owner: str) -> None:
        self._engine, self._owner = engine, owner
        self._inputs = engine.inputs
        self._trained = any(table["optimizer"] for table in engine.config()["tables"])
        self._numbers = count()
        self._waiting: OrderedDict[int, Lookup] = OrderedDict()
        self._applied: deque[int] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()

    def __call__(
        self, features: Any, weights: Any, token: Any, dtype: Any, weight_gradients: bool
    ) -> Any:
        """Return the activations in the structure of the features, with the way back.

        Parameters
        ----------
        features, weights : the structure of the configuration
            Leaves are tensors, ragged or sparse ones too; weights may be None.
        token : tf.Tensor or None
            A float that tapes record the lookup by; its gradient is zero. None: no update follows.
        dtype : tf.DType
            Of the activations.
        weight_gradients : bool
            Whether the weights get gradients too.
        """
        planned = self._inputs.features
        ids = [
            read_ids(
                leaf, feature.path, feature.spec.num_rows, hashed=feature.config.hash is not None
            )
            for leaf, feature in zip(
                self._inputs.leaves(features, "features"), planned, strict=True
            )
        ]
        weighed = [
            read_weights(leaf, feature.weights_path)
            for leaf, feature in zip(
                self._inputs.optional_leaves(weights, "weights"), planned, strict=True
            )
        ]
        call = _Call(self, [*ids, *weighed], len(ids))
        found = call.look_up() if token is None else call.connected(token, weight_gradients)
        for tensor, feature, leaf in zip(found, planned, ids, strict=True):
            config = feature.config
            shape = leaf.batch if config.output_shape is None else list(config.output_shape)
            if shape is not None:
                if config.max_sequence_length and config.output_shape is None:
                    shape = [*shape, config.max_sequence_length]
                tensor.set_shape([*shape, config.table.dim])
        return self._inputs.nested([tf.cast(one, dtype) for one in found])

    @property
    def dtypes(self) -> list[Any]:
        """TensorFlow's dtypes of the activations, per feature."""
        return [tf.as_dtype(feature.value) for feature in self._inputs.features]

    # --- what is called with arrays, by TensorFlow's threads too ----------------------------------

    def read(self, features: Sequence[Any], weights: Sequence[Any]) -> list[NDArray[Any]]:
        """Return the activations of arrays, for no update."""
        found = self._engine(self._inputs.nested(features), self._inputs.nested(weights))
        return self._flat(found)

    def begin(self, features: Sequence[Any], weights: Sequence[Any]) -> list[NDArray[Any]]:
        """Return a lookup's number and its activations."""
        number = next(self._numbers)
        if not self._trained:  # said when gradients come: a forward alone is none of its business
            return [np.array(number, np.int64), *self.read(features, weights)]
        lookup = self._looked_up(features, weights)
        found = self._flat(lookup.activations)
        with self._lock:
            self._waiting[number] = lookup
            while len(self._waiting) > _WAITING:
                self._waiting.popitem(last=False)
        return [np.array(number, np.int64), *found]

    def apply(
        self,
        number: int,
        features: Sequence[Any],
        weights: Sequence[Any],
        gradients: Sequence[NDArray[Any]],
        weight_gradients: bool,
    ) -> list[Any]:
        """Update the rows of a lookup; return the gradients of its weights, None where none are."""
        if not self._trained:
            raise ShardcoreRuntimeError(
                f"gradients came to {self._owner} without an optimizer: give its engine one, "
                "optimizer=shardcore.optimizers.SGD(0.1), or freeze it, layer.trainable = False"
            )
        with self._lock:
            if number in self._applied:
                raise ShardcoreRuntimeError(
                    f"gradients came a second time to one call of {self._owner}: call it again"
                )
            self._applied.append(number)
            lookup = self._waiting.pop(number, None)
        if lookup is None:
            lookup = self._looked_up(features, weights)
        found = lookup.apply_gradients(self._inputs.nested(gradients), weight_gradients)
        return self._inputs.leaves(found, "weights") if weight_gradients else []

    def _looked_up(self, features: Sequence[Any], weights: Sequence[Any]) -> Lookup:
        return self._engine.lookup(self._inputs.nested(features), self._inputs.nested(weights))

    def _flat(self, activations: Any) -> list[NDArray[Any]]:
        return [np.asarray(one) for one in self._inputs.leaves(activations, "activations")]


class _Call:
    """One call of the layer: in a graph, for as long as the graph lives.

    Parameters
    ----------
    lookups : Lookups
    leaves : list of Leaf
        Of the ids, then of the weights.
    features : int
        How many there are.
    """

    def __init__(self, lookups: Lookups, leaves: list[Leaf], features: int) -> None:
        self._lookups, self._leaves, self._features = lookups, leaves, features
        self._tensors = [tensor for leaf in leaves for tensor in leaf.tensors]

    def look_up(self) -> list[Any]:
        """Return the activations, for no update."""
        return _run(
            lambda *arrays: self._lookups.read(*self._assembled(arrays)),
            self._tensors,
            self._lookups.dtypes,
        )

    def connected(self, token: Any, weight_gradients: bool) -> list[Any]:
        """Return the activations, which hang on the token, and on the weights if that is asked."""
        weighed = self._leaves[self._features :] if weight_gradients else []
        wanted = [leaf for leaf in weighed if leaf.kind != "none"]
        values = [leaf.tensors[leaf.values] for leaf in wanted]

        @tf.custom_gradient
        def looked_up(token: Any, *values: Any) -> tuple[Any, Any]:
            number, *found = _run(
                lambda *arrays: self._lookups.begin(*self._assembled(arrays)),
                self._tensors,
                [tf.int64, *self._lookups.dtypes],
            )

            def update(*gradients: Any) -> list[Any]:
                dense = [tf.convert_to_tensor(one) for one in gradients]
                dtypes = [one.dtype for one in values]
                done, *of_weights = _run(
                    lambda *arrays: self._apply(arrays, dtypes),
                    [number, *dense, *self._tensors],
                    [tf.float32, *dtypes],
                )
                for gradient, one in zip(of_weights, values, strict=True):
                    gradient.set_shape(one.shape)
                return [tf.cast(done, token.dtype), *of_weights]

            return tuple(found), update

        return list(looked_up(token, *values))

    def _assembled(self, arrays: Sequence[NDArray[Any]]) -> tuple[list[Any], list[Any]]:
        rest = iter(arrays)
        own = [[next(rest) for _ in leaf.tensors] for leaf in self._leaves]
        given, count = list(zip(self._leaves, own, strict=True)), self._features
        return [leaf.ids(one) for leaf, one in given[:count]], [
            leaf.weights(one) for leaf, one in given[count:]
        ]

    def _apply(self, arrays: Sequence[NDArray[Any]], dtypes: Sequence[Any]) -> list[NDArray[Any]]:
        number, gradients = int(arrays[0]), arrays[1 : 1 + self._features]
        features, weights = self._assembled(arrays[1 + self._features :])
        found = self._lookups.apply(number, features, weights, gradients, bool(dtypes))
        kept = [one for one in found if one is not None]
        return [
            np.zeros((), np.float32),
            *(
                np.asarray(one, dtype.as_numpy_dtype)
                for one, dtype in zip(kept, dtypes, strict=True)
            ),
        ]


def _run(
    function: Callable[..., list[NDArray[Any]]], tensors: Sequence[Any], dtypes: Sequence[Any]
) -> list[Any]:
    """Call a function of arrays, at once, or whenever the graph that is being made runs."""
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(one) for one in function(*map(np.asarray, tensors))]
    found: list[Any] = tf.numpy_function(function, list(tensors), list(dtypes))
    return found

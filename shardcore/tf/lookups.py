"""Lookups of an engine as TensorFlow sees them: activations forward, an update of rows backward.

Eagerly the engine is called as it is; in a graph, by an operation of its own. From a forward to its
backward goes a number; the engine's `Lookup` of that number waits here. A graph does not tell that
a forward leads nowhere, so few of them wait: one that had to go is looked up again from its ids,
which makes the same update.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from shardcore.engine.embedding import ShardedEmbedding
from shardcore.engine.handle import Lookup
from shardcore.errors import ShardcoreRuntimeError
from shardcore.tf.calls import run
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
        self._engine, self.owner = engine, owner
        self._inputs = engine.inputs
        self._dtypes = [tf.as_dtype(feature.value) for feature in self._inputs.features]
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
        leaves = [*ids, *weighed]
        call = _Call(self, leaves, len(ids))
        if token is None:
            tensors = [tensor for leaf in leaves for tensor in leaf.tensors]
            found = run(call.read, tensors, self._dtypes)
        else:
            found = _connected(call, leaves, self._dtypes, token, weighed * weight_gradients)
        for tensor, feature, leaf in zip(found, planned, ids, strict=True):
            config = feature.config
            shape = leaf.batch if config.output_shape is None else list(config.output_shape)
            if shape is not None:
                if config.max_sequence_length and config.output_shape is None:
                    shape = [*shape, config.max_sequence_length]
                tensor.set_shape([*shape, config.table.dim])
        return self._inputs.nested([tf.cast(one, dtype) for one in found])

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
                f"gradients came to {self.owner} without an optimizer: give its engine one, "
                "optimizer=shardcore.optimizers.SGD(0.1), or freeze it, layer.trainable = False"
            )
        with self._lock:
            if number in self._applied:
                raise ShardcoreRuntimeError(
                    f"gradients came a second time to one call of {self.owner}: call it again"
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
    """One call of the layer, which keeps neither layer nor graph: TensorFlow keeps it for good.

    Parameters
    ----------
    lookups : Lookups
    leaves : list of Leaf
        Of the ids, then of the weights.
    features : int
        How many there are.
    """

    def __init__(self, lookups: Lookups, leaves: list[Leaf], features: int) -> None:
        self._lookups, self._owner = weakref.ref(lookups), lookups.owner
        self._held = lookups if tf.executing_eagerly() else None  # as long as a tape that knows it
        self._features, self._sizes = features, [len(leaf.tensors) for leaf in leaves]
        self._as_given = all(
            leaf.kind == "dense" and leaf.tensors[0].dtype.is_integer for leaf in leaves[:features]
        ) and all(leaf.kind == "none" for leaf in leaves[features:])
        self._leaves = [replace(leaf, tensors=()) for leaf in leaves]

    def read(self, *arrays: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the activations, for no update."""
        return self._kept().read(*self._assembled(arrays))

    def begin(self, *arrays: NDArray[Any]) -> list[NDArray[Any]]:
        """Return a lookup's number and its activations."""
        return self._kept().begin(*self._assembled(arrays))

    def apply(self, arrays: Sequence[NDArray[Any]], dtypes: Sequence[Any]) -> list[NDArray[Any]]:
        """Update the rows of a lookup; return a zero and, of the dtypes, the weights' gradients."""
        number, gradients = int(arrays[0]), arrays[1 : 1 + self._features]
        features, weights = self._assembled(arrays[1 + self._features :])
        found = self._kept().apply(number, features, weights, gradients, bool(dtypes))
        kept = [one for one in found if one is not None]
        return [
            np.zeros((), np.float32),
            *(
                np.asarray(one, dtype.as_numpy_dtype)
                for one, dtype in zip(kept, dtypes, strict=True)
            ),
        ]

    def _kept(self) -> Lookups:
        lookups = self._lookups()
        if lookups is None:
            raise ShardcoreRuntimeError(
                f"a graph was run whose {self._owner} is gone: keep the layer as long as the graph"
            )
        return lookups

    def _assembled(self, arrays: Sequence[NDArray[Any]]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return ids and weights, each in a form that an engine takes."""
        count = self._features
        if self._as_given:  # a few µs less of a small lookup
            return arrays, [None] * count
        rest = iter(arrays)
        own = [[next(rest) for _ in range(size)] for size in self._sizes]
        given = list(zip(self._leaves, own, strict=True))
        return [leaf.ids(one) for leaf, one in given[:count]], [
            leaf.weights(one) for leaf, one in given[count:]
        ]


def _connected(
    call: _Call, leaves: Sequence[Leaf], dtypes: Sequence[Any], token: Any, weighed: Sequence[Leaf]
) -> list[Any]:
    """Return activations of the dtypes, which hang on the token, and on the weights of leaves."""
    tensors = [tensor for leaf in leaves for tensor in leaf.tensors]
    values = [leaf.tensors[leaf.values] for leaf in weighed if leaf.kind != "none"]
    of_weights = [one.dtype for one in values]

    @tf.custom_gradient
    def looked_up(token: Any, *values: Any) -> tuple[Any, Any]:
        number, *found = run(call.begin, tensors, [tf.int64, *dtypes])

        def update(*gradients: Any) -> list[Any]:
            dense = [tf.convert_to_tensor(one) for one in gradients]
            done, *found = run(
                lambda *arrays: call.apply(arrays, of_weights),
                [number, *dense, *tensors],
                [tf.float32, *of_weights],
            )
            for gradient, one in zip(found, values, strict=True):
                gradient.set_shape(one.shape)
            return [tf.cast(done, token.dtype), *found]

        return tuple(found), update

    return list(looked_up(token, *values))

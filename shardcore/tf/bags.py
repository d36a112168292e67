"""The layer over an engine: bags of ids in, one vector per bag out."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from shardcore.engine.embedding import ShardedEmbedding
from shardcore.errors import (
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
    shown,
)
from shardcore.tf.lookups import Lookups
from shardcore.tf.saving import load_state, save_state

__all__ = ["EmbeddingBags"]


class EmbeddingBags(keras.layers.Layer):
    """A layer of Keras that looks features up in an engine, whose tables its gradients update.

    Parameters
    ----------
    engine : ShardedEmbedding
        It is built here. Its optimizers update the tables; the model's never sees them.
    weight_gradients : bool
        Whether `weights` get gradients too, with the update.
    **options
        Of ``keras.layers.Layer``: ``name``, ``trainable``, ``dtype``.

    Raises
    ------
    ShardcoreTypeError
        If `engine` is no engine, or `weight_gradients` no bool.
    ShardcoreValueError
        If the loss would be scaled: Keras' policy ``"mixed_float16"``.

    Notes
    -----
    The layer has one weight, ``token``, a zero: a tape records only what something trainable leads
    to, and ids are integers. Its gradient is zero. Whenever a tape goes back over a call of the
    layer, whatever it is asked for, the tables make one step. A layer with ``trainable=False``, and
    a call with ``training=False``, look up only.

    Examples
    --------
    >>> import shardcore as sc
    >>> words = sc.TableConfig(10, 2, initializer=sc.initializers.Constant(1), combiner="sum")
    >>> engine = sc.ShardedEmbedding(sc.FeatureConfig(words), sc.optimizers.SGD(0.5))
    >>> layer = EmbeddingBags(engine)
    >>> with tf.GradientTape() as tape:
    ...     loss = tf.reduce_sum(layer(tf.ragged.constant([[1, 2], [], [2]])))
    >>> float(loss), float(tape.gradient(loss, layer.trainable_weights)[0])
    (6.0, 0.0)
    >>> layer(tf.constant([[0], [1], [2]]), training=False).numpy()[:, 0]
    array([1. , 0.5, 0. ], dtype=float32)
    """

    def __init__(self, engine: Any, weight_gradients: bool = False, **options: Any) -> None:
        if not isinstance(engine, ShardedEmbedding):
            raise ShardcoreTypeError(f"engine must be a ShardedEmbedding, got {shown(engine)}")
        if not isinstance(weight_gradients, bool):
            raise ShardcoreTypeError(
                f"weight_gradients must be a bool, got {shown(weight_gradients)}"
            )
        super().__init__(autocast=False, **options)
        if "mixed_float16" in (keras.config.dtype_policy().name, self.dtype_policy.name):
            raise ShardcoreValueError(
                f"{type(self).__name__} must not be in a model of the policy 'mixed_float16', "
                "which scales the loss, and so what comes to the tables: use 'mixed_bfloat16'"
            )
        engine.build()
        self._engine = engine
        self._weight_gradients = weight_gradients
        self._lookups = Lookups(engine, type(self).__name__)
        self.supports_jit = False  # XLA has no calls of Python
        self.token = self.add_weight(shape=(), initializer="zeros", dtype="float32", name="token")
        self.built = True

    @property
    def engine(self) -> ShardedEmbedding:
        """The engine that holds the tables: to save it in a checkpoint, to write rows, to count."""
        return self._engine

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        """Return the activations of a batch.

        Parameters
        ----------
        inputs : the structure of the engine's features
            Leaves are tensors, whose last axis is the bag, ``RaggedTensor`` of rank 2, or
            ``SparseTensor``.
        weights : the same structure, optional
            Leaves are None, or tensors that are shaped as the ids.
        training : bool, optional
            False: look up only. None is as True.
        """
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise ShardcoreRuntimeError(
                f"{type(self).__name__} must not run in several replicas, which would each make a "
                "step: give the engine a backend of several hosts"
            )
        token = None
        if self.trainable and (training is None or training):
            token = tf.convert_to_tensor(self.token)
        dtype = tf.as_dtype(self.compute_dtype)
        return self._lookups(inputs, weights, token, dtype, self._weight_gradients)

    def save_own_variables(self, store: Any) -> None:
        """Put the tables, their slots and the step into a file of weights."""
        save_state(self._engine, store)

    def load_own_variables(self, store: Any) -> None:
        """Take the tables, their slots and the step from a file of weights; all, or nothing."""
        load_state(self._engine, store, self.name)

    def get_config(self) -> dict[str, Any]:
        """Refuse: an engine is made by code."""
        raise ShardcoreTypeError(
            f"{type(self).__name__} cannot be made from a file, as its engine is made by code: "
            "keep model.save_weights(path), make the model again, and model.load_weights(path)"
        )

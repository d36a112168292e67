"""`keras.layers.Embedding`, with an engine's table."""

from __future__ import annotations

import random
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

from shardcore.backend.base import Backend
from shardcore.engine.embedding import ShardedEmbedding
from shardcore.errors import ShardcoreTypeError, shown
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.optimizer.base import Optimizer
from shardcore.tf.bags import EmbeddingBags

__all__ = ["Embedding"]

TABLE: Final = "embedding"

_INSTEAD: Final = {
    "embeddings_regularizer": "weight_decay_factor= of the optimizer decays the rows of a batch",
    "embeddings_constraint": "clip_weight_min= and clip_weight_max= of the optimizer bound rows",
    "lora_rank": "add a layer of low rank behind this one",
    "lora_alpha": "add a layer of low rank behind this one",
    "quantization_config": "shardcore.TableConfig(quantization_config=...) and EmbeddingBags",
}


class Embedding(EmbeddingBags):
    """A row of a table per id, as ``keras.layers.Embedding``.

    Parameters
    ----------
    input_dim, output_dim : int
        Rows and columns.
    embeddings_initializer : str, initializer of Keras, or one of `shardcore.initializers`
        Keras' own decides the distribution; chance follows ``keras.utils.set_random_seed``.
    embeddings_regularizer, embeddings_constraint, lora_rank, lora_alpha, quantization_config : None
        Refused.
    mask_zero : bool
        Whether id 0 is masked for the layers behind.
    weights : array of shape (input_dim, output_dim), or a list of one, optional
        Initial values, which are copied.
    optimizer : Optimizer, optional
        One of `shardcore.optimizers`. None: gradients raise.
    backend : str or Backend, optional
        As `shardcore.ShardedEmbedding` takes it.
    **options
        Of ``keras.layers.Layer``.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule.

    Examples
    --------
    >>> import shardcore as sc
    >>> layer = Embedding(10, 2, "ones", optimizer=sc.optimizers.SGD(0.5))
    >>> with tf.GradientTape() as tape:
    ...     loss = tf.reduce_sum(layer(tf.constant([[1, 2], [2, 4]])))
    >>> _ = tape.gradient(loss, layer.trainable_weights)
    >>> layer.embeddings[:5, 0]
    array([1. , 0.5, 0. , 1. , 0.5], dtype=float32)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: None = None,
        embeddings_constraint: None = None,
        mask_zero: bool = False,
        weights: Any = None,
        lora_rank: None = None,
        lora_alpha: None = None,
        quantization_config: None = None,
        *,
        optimizer: Optimizer | None = None,
        backend: str | Backend | None = None,
        **options: Any,
    ) -> None:
        refused = {
            "embeddings_regularizer": embeddings_regularizer,
            "embeddings_constraint": embeddings_constraint,
            "lora_rank": lora_rank,
            "lora_alpha": lora_alpha,
            "quantization_config": quantization_config,
        }
        for argument, value in refused.items():
            if value is not None:
                raise ShardcoreTypeError(
                    f"{argument} must be None, got {shown(value)}; instead, {_INSTEAD[argument]}"
                )
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise ShardcoreTypeError(
                "optimizer must be one of shardcore.optimizers, such as "
                f"shardcore.optimizers.SGD(0.1), or None, got {shown(optimizer)}"
            )
        if weights is not None:
            one = weights[0] if isinstance(weights, list | tuple) and len(weights) == 1 else weights
            initial: Any = np.asarray(one)
        elif isinstance(embeddings_initializer, str | dict):
            initial = keras.initializers.get(embeddings_initializer)
        else:
            initial = embeddings_initializer
        policy = keras.dtype_policies.get(options.get("dtype"))
        table = TableConfig(
            input_dim,
            output_dim,
            initializer=initial,
            combiner="sum",
            name=TABLE,
            dtype=policy.variable_dtype,
        )
        super().__init__(
            ShardedEmbedding(
                FeatureConfig(table),
                optimizer=optimizer,
                backend=backend,
                seed=random.randrange(1 << 31),  # as Keras' own, which its set_random_seed seeds
            ),
            **options,
        )
        self.input_dim, self.output_dim = table.vocabulary_size, table.dim
        self.mask_zero = self.supports_masking = mask_zero

    @property
    def embeddings(self) -> Any:
        """The rows, as a copy. Rows are written by ``layer.engine.tables["embedding"]``."""
        return self.engine.tables[TABLE].numpy()

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the rows of ids, shape (*inputs.shape, output_dim); see `EmbeddingBags.call`."""
        if isinstance(inputs, tf.RaggedTensor | tf.SparseTensor):
            raise ShardcoreTypeError(
                f"inputs must be a tensor, got a {type(inputs).__name__}: EmbeddingBags takes it"
            )
        ids = tf.convert_to_tensor(inputs)
        rows = super().call(tf.reshape(ids, [-1]), None, training)
        return tf.reshape(rows, tf.concat([tf.shape(ids), [self.output_dim]], axis=0))

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return where ids are not 0, with ``mask_zero``."""
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

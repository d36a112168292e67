"""Keras on TensorFlow: its own layer and optimizer, in graph functions.

Keras 3 makes the gradients of a layer's table dense.
"""

from __future__ import annotations

import importlib
from typing import Any

from shardcore_bench.contender import Arrays, Contender
from shardcore_bench.peers.base import Peer
from shardcore_bench.peers.tensorflow_peer import TensorFlow
from shardcore_bench.tasks import LookupTask, StepTask

__all__ = ["Keras"]


class Keras(Peer):
    """Keras on TensorFlow."""

    name = "Keras"
    modules = ("tensorflow", "keras")

    def set_num_threads(self, threads: int) -> None:
        TensorFlow().set_num_threads(threads)

    def own_lookup(self, task: LookupTask) -> Contender:
        tf = importlib.import_module("tensorflow")
        layer = self._layer(task.rows)
        ids = tf.constant(task.ids.reshape(task.row_splits.size - 1, -1))

        graph = tf.function(lambda ids: tf.reduce_sum(layer(ids), axis=1))
        return Contender(
            "layers.Embedding, reduce_sum", lambda: graph(ids), lambda found: (found.numpy(),)
        )

    def own_step(self, task: StepTask) -> Contender:
        tf, keras = importlib.import_module("tensorflow"), importlib.import_module("keras")
        (bags,), (rows,) = task.features, task.tables
        if task.update.name != "SGD":
            raise self.unable("asked for SGD only")
        layer = self._layer(rows)
        optimizer = keras.optimizers.SGD(task.update.learning_rate)
        optimizer.build(layer.trainable_variables)
        ids = tf.constant(bags.ids.reshape(bags.row_splits.size - 1, -1))
        gradient = tf.constant(bags.gradient)

        def step(ids: Any) -> Any:
            with tf.GradientTape() as tape:
                activations = tf.reduce_sum(layer(ids), axis=1)
            found = tape.gradient(activations, layer.trainable_variables, gradient)
            optimizer.apply_gradients(zip(found, layer.trainable_variables, strict=True))
            return activations

        def arrays(found: Any) -> Arrays:
            return found.numpy(), tf.gather(layer.embeddings, task.probes[0]).numpy()

        graph = tf.function(step)
        return Contender("layers.Embedding, SGD", lambda: graph(ids), arrays)

    def _layer(self, rows: Any) -> Any:
        keras = importlib.import_module("keras")
        layer = keras.layers.Embedding(*rows.shape)
        layer.build()
        layer.embeddings.assign(rows)
        return layer

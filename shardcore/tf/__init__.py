"""The door for TensorFlow: layers of Keras over an engine, and what is taken over from elsewhere.

`EmbeddingBags` looks features up in an engine; `Embedding` takes the arguments of its namesake in
Keras and has a table of its own. Gradients update the rows of the batch, by the optimizer of the
engine. `from_tpu_embedding` makes an engine of the configuration of a ``TPUEmbedding``, and
`load_checkpoint` reads rows and slots that ``tf.train`` has saved.

Imported only when asked for: ``import shardcore.tf``. It needs the package ``tensorflow``. Engines
take ragged and sparse tensors, and initializers of Keras, without it.

::

    EmbeddingBags         bags            a layer over an engine
    Embedding             embedding       a layer with a table
    from_tpu_embedding    tpu_embedding   the configuration of a TPUEmbedding, as an engine
    load_checkpoint       checkpoints     rows and slots of a checkpoint of tf.train
                          lookups         a lookup as TensorFlow's tapes and graphs see it
                          leaves          one feature as plain tensors
                          saving          tables in a file of weights of Keras

Examples
--------
>>> import keras
>>> import numpy as np
>>> import shardcore as sc
>>> from shardcore.tf import EmbeddingBags
>>> words = sc.TableConfig(10, 2, initializer=keras.initializers.Ones(), combiner="sum")
>>> engine = sc.ShardedEmbedding(sc.FeatureConfig(words), sc.optimizers.SGD(0.1))
>>> model = keras.Sequential([EmbeddingBags(engine), keras.layers.Dense(1)])
>>> model.compile("sgd", "mse")
>>> _ = model.fit(np.array([[1, 2], [2, 4]]), np.ones((2, 1)), verbose=0)
>>> engine.step
1
"""

from __future__ import annotations

from shardcore.tf._needed import TensorFlowMissingError
from shardcore.tf.bags import EmbeddingBags
from shardcore.tf.checkpoints import load_checkpoint
from shardcore.tf.embedding import Embedding
from shardcore.tf.tpu_embedding import from_tpu_embedding

__all__ = [
    "Embedding",
    "EmbeddingBags",
    "TensorFlowMissingError",
    "from_tpu_embedding",
    "load_checkpoint",
]

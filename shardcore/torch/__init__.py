"""The door for PyTorch: modules as `torch.nn` has them, whose tables and updates are an engine's.

`EmbeddingBag` and `Embedding` take the arguments and the calls of their namesakes in `torch.nn`;
`EmbeddingBagCollection` and `EmbeddingCollection` those of torchrec. Beside them stand
``optimizer=``, ``backend=`` and ``update=``: tables are no parameters, their optimizer is one of
`shardcore.optimizers`, and ``backward()`` updates the rows of the batch (``update="backward"``), or
keeps their gradients until ``module.step()`` (``update="step"``).

Imported only when asked for: ``import shardcore.torch``. It needs the package ``torch``.

::

    EmbeddingBag, Embedding      bags, embedding       one table each
    EmbeddingBagCollection, ...  collections           many tables, looked up and updated at once
    EngineModule                 module                what all have: engine, step, state_dict
                                 autograd              the lookup as torch's autograd sees it
                                 calls                 ids and offsets, checked
                                 compiling, max_pooling, tensors, threads, table_copy

Examples
--------
>>> import torch
>>> import shardcore as sc
>>> from shardcore.torch import EmbeddingBag
>>> ones, optimizer = torch.ones(10, 2), sc.optimizers.SGD(0.5)
>>> bag = EmbeddingBag(10, 2, mode="sum", optimizer=optimizer, _weight=ones)
>>> bag(torch.tensor([[1, 2], [2, 4]])).sum().backward()
>>> bag.weight[:4, 0]
TableCopy([1.0000, 0.5000, 0.0000, 1.0000])
"""

from __future__ import annotations

from shardcore.torch._needed import TorchMissingError
from shardcore.torch.bags import EmbeddingBag
from shardcore.torch.collections import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    FeatureModule,
    JaggedTensor,
    KeyedTensor,
)
from shardcore.torch.embedding import Embedding
from shardcore.torch.module import EngineModule

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "EngineModule",
    "FeatureModule",
    "JaggedTensor",
    "KeyedTensor",
    "TorchMissingError",
]

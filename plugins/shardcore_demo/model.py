"""The sharded table and the dense layer, as one thing to ask, train, save and restore."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import shardcore as sc
from shardcore_demo.features import Bags, take_bags
from shardcore_demo.options import DemoOptions
from shardcore_demo.softmax import SoftmaxLayer

__all__ = ["Model"]

_FEATURE: Final = "words"
_BAGS_PER_LOOKUP: Final = 1024


class Model:
    """A classifier of bags: the mean of a bag's rows, then a linear softmax layer.

    Parameters
    ----------
    options : DemoOptions
    classes : int
    hosts : int or None
        Number of simulated hosts, None for a backend that simulates none.
    seed : int
        Of the values that are not restored.
    """

    def __init__(self, options: DemoOptions, classes: int, hosts: int | None, seed: int) -> None:
        table = sc.TableConfig(
            options.buckets,
            options.dim,
            initializer=sc.initializers.Zeros(),  # an id that was never trained adds nothing
            combiner="mean",
            name="tokens",
        )
        self._engine = sc.ShardedEmbedding(
            {_FEATURE: sc.FeatureConfig(table, name=_FEATURE)},
            optimizer=sc.optimizers.Adagrad(
                learning_rate=options.learning_rate, initial_accumulator_value=0.1
            ),
            backend=options.backend,
            backend_options=options.backend_options(hosts),
            seed=seed,
        )
        self._learning_rate = options.learning_rate
        self._layer = SoftmaxLayer(classes, options.dim, seed)
        self._checkpoint = sc.Checkpoint(embedding=self._engine, dense=self._layer.arrays)

    def __enter__(self) -> Model:
        self._engine.build()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._engine.close()

    def train(self, bags: Bags, labels: NDArray[np.int64]) -> float:
        """Make one step and return the sum of the bags' losses before it."""
        self._engine.enqueue({_FEATURE: bags})
        activations = self._engine.dequeue()[_FEATURE]
        loss, gradient = self._layer.train(activations, labels, self._learning_rate)
        self._engine.apply_gradients({_FEATURE: gradient})
        return loss

    def activations(self, bags: Bags) -> NDArray[np.float32]:
        """Return the mean of each bag's rows, shape (bags, dim)."""
        numbers = np.arange(bags[1].size - 1)
        return np.concatenate(
            [
                self._engine(
                    {_FEATURE: take_bags(bags, numbers[first : first + _BAGS_PER_LOOKUP])}
                )[_FEATURE]
                for first in range(0, max(1, numbers.size), _BAGS_PER_LOOKUP)
            ]
        )

    def logits(self, bags: Bags) -> NDArray[np.float32]:
        """Return the logits of each bag, shape (bags, classes)."""
        return self._layer.logits(self.activations(bags))

    def metrics(self) -> dict[str, Any]:
        """Return the engine's counters."""
        return dict(self._engine.metrics())

    def save(self, root: str | os.PathLike[str], step: int) -> Path:
        """Save everything as one step under `root` and return its directory."""
        return self._checkpoint.save(root, step)

    def restore(self, path: str | os.PathLike[str]) -> int:
        """Restore everything from a step and return its number."""
        return self._checkpoint.restore(path)

"""The backend under `ShardedEmbedding`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardcore import optimizers
from shardcore.backend.base import Backend
from shardcore.engine.embedding import ShardedEmbedding
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.testing.agreement import assert_agree
from shardcore.testing.backend.fixtures import BackendFixtures
from shardcore.testing.model import ModelBackend
from shardcore.testing.requests import Probe
from shardcore.testing.twins import RawRows, ToDevice


class EngineTests(BackendFixtures):
    """Whole training steps, beside the same on the model."""

    def test_under_the_engine(self, backend: Backend, raw_rows: RawRows) -> None:
        """Three steps of `ShardedEmbedding` over two tables, beside the same on the model."""
        self._check_training(backend, raw_rows, np.asarray, pipeline=False)

    @pytest.mark.parametrize("pipeline", [False, True], ids=["inline", "pipeline"])
    def test_under_the_engine_on_the_device(
        self, backend: Backend, raw_rows: RawRows, to_device: ToDevice, pipeline: bool
    ) -> None:
        """The same with gradients on the device; activations are the caller's for good."""
        self._check_training(
            backend, raw_rows, lambda gradient: to_device(backend, gradient), pipeline
        )

    def _check_training(
        self,
        backend: Backend,
        raw_rows: RawRows,
        as_given: Callable[[NDArray[Any]], Any],
        pipeline: bool,
    ) -> None:
        model = ModelBackend()
        engines = [
            self._train(backend, as_given, pipeline),
            self._train(model, np.asarray, pipeline=False),
        ]
        for outputs, expected in zip(engines[0], engines[1], strict=True):
            for name, wanted in expected.items():
                out = (
                    np.asarray(outputs[name])
                    if backend.capabilities.device_arrays
                    else outputs[name]
                )
                assert_agree(out, wanted, f"activations of {name!r}: out", self._limit)
        for (table, slot), wanted in model.arrays.items():
            stored = np.array(raw_rows(backend, table, slot))
            assert_agree(stored, wanted, f"table {table!r}, slot {slot!r}: rows", self._limit)

    def _train(
        self, backend: Backend, as_given: Callable[[NDArray[Any]], Any], pipeline: bool
    ) -> list[dict[str, Any]]:
        rng = np.random.default_rng(5)
        users = TableConfig(17, 6, optimizer=Probe(), name="users")
        items = TableConfig(40, 3, combiner="sum", name="items", layout="mod")
        engine = ShardedEmbedding(
            {
                "user": FeatureConfig(users),
                "friends": FeatureConfig(users),
                "history": FeatureConfig(items, max_sequence_length=3),
            },
            optimizer=optimizers.Adagrad(learning_rate=0.5),
            backend=backend,
            pipeline=pipeline,
        )
        seen = []
        for _ in range(3):
            features = {
                "user": rng.integers(0, 17, 8),
                "friends": [list(rng.integers(0, 17, size)) for size in rng.integers(0, 4, 8)],
                "history": [list(rng.integers(0, 40, size)) for size in rng.integers(0, 6, 8)],
            }
            engine.enqueue(features)
            activations = engine.dequeue()
            gradients = {
                name: as_given(rng.uniform(-1, 1, array.shape).astype(np.float32))
                for name, array in activations.items()
            }
            engine.apply_gradients(gradients)
            seen.append(activations)
        seen.append(engine(features))
        return seen

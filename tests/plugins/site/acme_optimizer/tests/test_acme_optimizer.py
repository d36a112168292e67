import numpy as np
import pytest

import shardcore as sc
from shardcore.testing import OptimizerConformance


class TestNesterov(OptimizerConformance):
    @pytest.fixture
    def optimizer(self):
        return sc.optimizers.Nesterov(learning_rate=0.01)


class TestInTheEngine:
    def test_trains(self):
        table = sc.TableConfig(10, 4, initializer=sc.initializers.Zeros(), name="t")
        optimizer = sc.optimizers.Nesterov(learning_rate=0.5, momentum=0.5)
        with sc.ShardedEmbedding({"f": sc.FeatureConfig(table)}, optimizer) as engine:
            engine.enqueue({"f": [[3], [3]]})
            engine.dequeue()
            engine.apply_gradients({"f": np.ones((2, 4), np.float32)})
            np.testing.assert_array_equal(engine.tables["t"][3], [-1.5] * 4)
            np.testing.assert_array_equal(engine.slots["t"]["momenta"][3], [2.0] * 4)

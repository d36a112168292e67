import numpy as np
import pytest

import shardcore as sc
from shardcore.testing import OptimizerConformance


class TestLion(OptimizerConformance):
    @pytest.fixture
    def optimizer(self):
        return sc.optimizers.Lion(learning_rate=0.01, weight_decay=0.001)


class TestInTheEngine:
    def test_trains(self):
        table = sc.TableConfig(10, 4, initializer=sc.initializers.Constant(1.0), name="t")
        optimizer = sc.optimizers.Lion(learning_rate=0.5, beta_2=0.75, weight_decay=0.25)
        with sc.ShardedEmbedding({"f": sc.FeatureConfig(table)}, optimizer) as engine:
            engine.enqueue({"f": [[3], [3]]})
            engine.dequeue()
            engine.apply_gradients({"f": np.ones((2, 4), np.float32)})
            np.testing.assert_array_equal(engine.tables["t"][3], [0.375] * 4)
            np.testing.assert_array_equal(engine.slots["t"]["momenta"][3], [0.5] * 4)

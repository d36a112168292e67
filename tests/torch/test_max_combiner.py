"""Greatest values and their gradients, beside torch's own ``embedding_bag(mode="max")``."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import shardcore as sc  # noqa: E402

ROWS, DIM = 30, 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(12))
def test_values_and_gradients_are_torch_s(seed, dtype):
    rng = np.random.default_rng(seed)
    weight = rng.choice([-2.0, -0.0, 0.0, 1.0, 1.0, 3.0, np.inf, -np.inf, np.nan], (ROWS, DIM),
                        p=[0.15, 0.1, 0.1, 0.15, 0.15, 0.15, 0.05, 0.05, 0.1])  # fmt: skip
    splits = np.concatenate([[0], np.cumsum(rng.integers(0, 7, 40))])
    ids = rng.integers(0, ROWS, splits[-1])
    theirs = torch.tensor(weight, dtype=dtype, requires_grad=True)
    expected = torch.nn.functional.embedding_bag(
        torch.tensor(ids), theirs, torch.tensor(splits[:-1]), mode="max"
    )
    gradient = rng.integers(-8, 9, (40, DIM)).astype(float)  # whole numbers: any order of sums
    expected.backward(torch.tensor(gradient, dtype=dtype))
    name = str(dtype).removeprefix("torch.")
    table = sc.TableConfig(ROWS, DIM, combiner="max", dtype=name, name="t",
                           initializer=sc.initializers.Zeros())  # fmt: skip
    e = sc.ShardedEmbedding(sc.FeatureConfig(table), sc.optimizers.SGD(1.0))
    e.build()
    e.tables["t"][:] = weight
    e.enqueue((ids, splits))
    found = e.dequeue()
    np.testing.assert_array_equal(found, expected.detach().numpy())
    e.tables["t"][:] = 0  # so that what is stored is the gradient, where it is finite or not
    e.apply_gradients(gradient)
    np.testing.assert_array_equal(-np.asarray(e.tables["t"]), theirs.grad.numpy())

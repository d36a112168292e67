"""``mode="max"`` of our EmbeddingBag where values are equal or NaN: as torch's."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from shardcore.torch.max_pooling import max_of_bags  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(8))
def test_values_and_gradients_are_torch_s(seed, dtype):
    rng = np.random.default_rng(seed)
    splits = np.concatenate([[0], np.cumsum(rng.integers(0, 5, 12))])
    values = rng.choice([-1.0, 0.0, 2.0, 2.0, np.nan, np.inf], (splits[-1], 4))
    ours, theirs = (torch.tensor(values, dtype=dtype, requires_grad=True) for _ in range(2))
    found = max_of_bags(ours, splits)
    ids, offsets = torch.arange(len(values)), torch.tensor(splits[:-1])
    wanted = torch.nn.functional.embedding_bag(ids, theirs, offsets, mode="max")
    assert torch.isnan(wanted).any()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    gradient = torch.tensor(rng.normal(size=(12, 4)), dtype=dtype)
    found.backward(gradient)
    wanted.backward(gradient)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0)

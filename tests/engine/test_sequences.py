"""Features of max_sequence_length: rows padded and cut, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from engines import BACKENDS, ROWS, VIDEOS, Creep, engine, video_and_user

import shardcore as sc
from shardcore.features.config import FeatureConfig, TableConfig


@pytest.mark.parametrize("where", BACKENDS)
@pytest.mark.parametrize("policy", ["drop", "zero", "clip", 2])
def test_sequences_are_padded_and_truncated(where, policy):
    table = TableConfig(5, 2, initializer=lambda r, *_: np.repeat(r[:, None] + 1, 2, 1), name="t")
    feature = FeatureConfig(table, max_sequence_length=3, invalid_ids=policy)
    e = engine(feature, Creep(), **where)
    e.enqueue([[1, 9, 3], [], [4, 0, 0, 1], [0]])
    out = e.dequeue()
    assert out.shape == (4, 3, 2)
    np.testing.assert_array_equal(out[..., 0], out[..., 1])
    first = {"drop": [2, 4, 0], "zero": [2, 0, 4], "clip": [2, 5, 4], 2: [2, 3, 4]}[policy]
    np.testing.assert_array_equal(out[..., 0], [first, [0, 0, 0], [5, 1, 1], [1, 0, 0]])
    e.apply_gradients(np.zeros(out.shape))
    touched = {"drop": [0, 1, 3, 4], "zero": [0, 1, 3, 4], "clip": [0, 1, 3, 4], 2: [0, 1, 2, 3, 4]}
    assert np.flatnonzero(np.asarray(e.slots["t"]["visits"])).tolist() == touched[policy]
    assert e.metrics()["invalid_ids"] == 1


def test_truncated_ids_are_not_touched_and_drop_moves_later_ids_up():
    table = TableConfig(5, 1, initializer=ROWS, name="t")
    e = engine(FeatureConfig(table, max_sequence_length=2, invalid_ids="drop"), Creep())
    e.enqueue([[-1, 1, 7, 2, 3]])
    np.testing.assert_array_equal(e.dequeue()[0, :, 0], [1, 2])
    e.apply_gradients(np.zeros((1, 2, 1)))
    assert np.flatnonzero(np.asarray(e.slots["t"]["visits"])).tolist() == [1, 2]


def test_sequence_with_output_shape():
    table = TableConfig(5, 1, initializer=ROWS)
    e = engine(FeatureConfig(table, max_sequence_length=2, output_shape=(2, 2, 2)))
    out = e([[1, 2], [3], [4], []])
    np.testing.assert_array_equal(out[..., 0], [[[1, 2], [3, 0]], [[4, 0], [0, 0]]])


@pytest.mark.parametrize("where", BACKENDS)
def test_sequence_gradients_of_upstream(where):
    e = video_and_user((2, 2, 3), sc.optimizers.SGD(learning_rate=0.1), where)
    e.enqueue(VIDEOS)
    before = e.dequeue()
    assert {name: a.shape for name, a in before.items()} == {
        "watched": (2, 2, 4), "favorited": (2, 2, 4), "friends": (2, 3, 2)}  # fmt: skip
    masks = {"watched": [[1, 0], [1, 1]], "favorited": [[1, 1], [1, 0]],
             "friends": [[1, 0, 0], [1, 1, 1]]}  # fmt: skip
    ones = {name: np.ones(a.shape) for name, a in before.items()}
    for name, mask in masks.items():
        ones[name][np.array(mask) == 0] = 1e9  # on padding, ignored
    e.apply_gradients(ones)
    after = e(VIDEOS)
    for name, drop in (("watched", 0.3), ("favorited", 0.3), ("friends", 0.1)):
        expected = before[name] - drop * np.array(masks[name])[..., None]
        np.testing.assert_allclose(after[name], expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(after[name][np.array(masks[name]) == 0], 0)

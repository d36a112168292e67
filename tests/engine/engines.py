"""What tests of an engine share: backends, one step, an optimizer that counts, and combiners."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pytest

import shardcore as sc
from shardcore.features.config import FeatureConfig, TableConfig

ROWS = sc.initializers.RowId()
COMBINERS = ("sum", "mean", "sqrtn")
BACKENDS = [
    pytest.param({"backend": "cpu"}, id="cpu"),
    pytest.param({"backend": "sim", "backend_options": {"hosts": 3}}, id="sim3"),
]
VIDEOS = {"watched": [[0], [0, 1]], "favorited": [[0, 1], [1]], "friends": [[3], [0, 1, 2]]}


@dataclass(frozen=True, eq=False, repr=False)
class Creep(sc.Optimizer):
    """Moves every touched row by 1 whatever its gradient, and counts how often in a row slot."""

    hyper_names = ()
    slots = (sc.SlotSpec("visits", "row"),)

    def update(self, grad, rows, slots, hyper, step, row_ids):
        return rows + 1, {"visits": slots["visits"] + 1}


def engine(config, optimizer=None, **options):
    e = sc.ShardedEmbedding(config, optimizer=optimizer, **options)
    e.build()
    return e


def train(e, features, gradients, weights=None):
    """One step; `gradients` is a number for all of them, or their structure."""
    e.enqueue(features, weights)
    activations = e.dequeue()
    if isinstance(gradients, int | float):
        gradients = {name: np.full(a.shape, gradients) for name, a in activations.items()}
    e.apply_gradients(gradients)
    return activations


def combined(rows, bags, weights, combiner):
    """Combine bags by the definition, in float64."""
    out = np.zeros((len(bags), rows.shape[1]))
    for b, bag in enumerate(bags):
        w = np.ones(len(bag)) if weights is None else np.array(weights[b], np.float64)
        total = sum((wi * rows[i] for wi, i in zip(w, bag, strict=True)), np.zeros(rows.shape[1]))
        divisor = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w * w).sum())}[combiner]
        out[b] = total / divisor if divisor else 0
    return out


def splits(bags):
    return list(accumulate(map(len, bags), initial=0))


def flat(bags):
    return [i for bag in bags for i in bag]


def video_and_user(lengths=(0, 0, 0), optimizer=None, where=None):
    values = np.arange(32.0)
    video = TableConfig(8, 4, initializer=values.reshape(8, 4), combiner="sum", name="video")
    user = TableConfig(16, 2, initializer=values.reshape(16, 2), name="user")
    config = {
        "watched": FeatureConfig(video, max_sequence_length=lengths[0]),
        "favorited": FeatureConfig(video, max_sequence_length=lengths[1]),
        "friends": FeatureConfig(user, max_sequence_length=lengths[2]),
    }
    return engine(config, optimizer, **(where or {}))


def assert_close_waits(engine, call, inside, let_go, soon=30.0, a_while=0.1):
    """Close an engine while a call of it goes on, which sets `inside` and waits for `let_go`."""
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert inside.wait(soon)
    closer = threading.Thread(target=engine.close, daemon=True)
    closer.start()
    closer.join(a_while)
    assert closer.is_alive()
    let_go.set()
    closer.join(soon)
    caller.join(soon)
    assert not closer.is_alive()

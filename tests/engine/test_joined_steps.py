"""Handles against the calls they stand beside, and several in a step against one joined batch.

Engines are made twice, with everything that sums: tables shared by features, every combiner,
weights and none, sequences, invalid ids, slots, rates that are asked, chance. One trains by
handles, the other by `enqueue`, `dequeue` and `apply_gradients`; all that can be seen is compared,
to the byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dictionary_backend import Dictionary
from hypothesis import given, settings
from hypothesis import strategies as st

import shardcore as sc
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.testing import ModelBackend
from shardcore.testing.requests import Probe

ITEMS, USERS, TAGS = 23, 11, 5


BACKENDS = {
    "cpu": lambda: {"backend": "cpu"},
    "sim": lambda: {"backend": "sim", "backend_options": {"hosts": 3}},
    "dictionary": lambda: {"backend": Dictionary()},
    "model": lambda: {"backend": ModelBackend()},
    "pipeline": lambda: {"backend": "cpu", "pipeline": True},
    "sim pipeline": lambda: {
        "backend": "sim",
        "backend_options": {"hosts": 4},
        "pipeline": True,
    },
}
each_backend = pytest.mark.parametrize("where", BACKENDS)


def make_engine(where: str, exchange: str = "exact") -> sc.ShardedEmbedding:
    rates = iter(np.linspace(0.1, 1, 200).tolist())
    items = TableConfig(ITEMS, 4, name="items", layout="mod", exchange=exchange)
    users = TableConfig(USERS, 3, combiner="sqrtn", name="users", optimizer=Probe(0.5, 0.25))
    narrow = sc.optimizers.SGD(learning_rate=0.5, stochastic_rounding=True)
    tags = TableConfig(
        TAGS, 2, combiner="sum", name="tags", dtype="float16", optimizer=narrow, exchange=exchange
    )
    features = {
        "clicks": FeatureConfig(items),
        "views": [FeatureConfig(items, invalid_ids="drop"), FeatureConfig(users)],
        "history": FeatureConfig(items, max_sequence_length=2, invalid_ids="zero"),
        "tags": FeatureConfig(tags, invalid_ids="clip"),
    }
    optimizer = sc.optimizers.Adagrad(learning_rate=lambda: next(rates))
    return sc.ShardedEmbedding(features, optimizer, seed=3, **BACKENDS[where]())


PLACES = [("clicks",), ("views", 0), ("views", 1), ("history",), ("tags",)]
ROWS = [ITEMS, ITEMS + 4, USERS, ITEMS + 2, TAGS + 2]  # beyond the last: by policy
DIMS = [4, 4, 3, 4, 2]
WEIGHED = (True, True, True, False, True)


def nested(leaves: list[Any]) -> dict[str, Any]:
    clicks, views, users, history, tags = leaves
    return {"clicks": clicks, "views": [views, users], "history": history, "tags": tags}


def leaves_of(structure: Any) -> list[Any]:
    return [
        structure["clicks"], *structure["views"], structure["history"], structure["tags"]
    ]  # fmt: skip


class Part:
    """The input of one lookup, per feature, and the gradients that come of it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.bags, self.weights, self.gradients = [], [], []
        size = int(rng.integers(0, 6))
        for rows, dim, weighed in zip(ROWS, DIMS, WEIGHED, strict=True):
            lengths = rng.integers(0, 5, size)
            splits = np.concatenate([[0], np.cumsum(lengths)])
            self.bags.append((rng.integers(0, rows, splits[-1]), splits))
            given = weighed and rng.random() < 0.5
            self.weights.append(rng.normal(size=splits[-1]) if given else None)
            shape = (size, 2, dim) if rows == ITEMS + 2 else (size, dim)
            self.gradients.append(rng.normal(size=shape) if rng.random() < 0.8 else None)

    @property
    def features(self) -> dict[str, Any]:
        return nested(self.bags)


def joined(parts: list[Part]) -> Part:
    """Return the one batch: feature by feature, the parts that have a gradient for it."""
    one = Part.__new__(Part)
    one.bags, one.weights, one.gradients = [], [], []
    for at in range(len(PLACES)):
        held = [part for part in parts if part.gradients[at] is not None]
        ids = [part.bags[at][0] for part in held]
        lengths = [np.diff(part.bags[at][1]) for part in held]
        counts = np.concatenate([np.zeros(0, np.int64), *lengths])
        one.bags.append(
            (np.concatenate([np.zeros(0, np.int64), *ids]), np.concatenate([[0], counts.cumsum()]))
        )
        if any(part.weights[at] is not None for part in held):
            of_each = [
                np.ones(part.bags[at][0].size) if part.weights[at] is None else part.weights[at]
                for part in held
            ]
            one.weights.append(np.concatenate(of_each))
        else:
            one.weights.append(None)
        one.gradients.append(
            np.concatenate([part.gradients[at] for part in held]) if held else None
        )
    return one


def seen(engine: sc.ShardedEmbedding) -> dict[str, Any]:
    """Return every byte of the tables and their slots, and how far the engine is."""
    found: dict[str, Any] = {"step": engine.step, "steps": engine.metrics()["steps"]}
    for name, table in engine.tables.items():
        found[name] = np.asarray(table).tobytes()
        for slot, values in engine.slots[name].items():
            found[f"{name}/{slot}"] = np.asarray(values).tobytes()
    return found


def by_queue(engine: sc.ShardedEmbedding, part: Part) -> tuple[list[Any], list[Any]]:
    engine.enqueue(part.features, nested(part.weights))
    activations = engine.dequeue()
    found = engine.apply_gradients(nested(part.gradients), weight_gradients=True)
    return leaves_of(activations), leaves_of(found)


def same(one: Any, other: Any) -> None:
    assert (one is None) == (other is None)
    if one is not None:
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def all_same(some: list[Any], others: list[Any]) -> None:
    for one, other in zip(some, others, strict=True):
        same(one, other)


seeds = st.integers(0, 2**32 - 1)


@each_backend
@given(seed=seeds)
@settings(max_examples=6, deadline=None)
def test_a_handle_does_what_the_line_does(where: str, seed: int) -> None:
    """Beside it others are looked up, dropped, read without training; nothing changes for it."""
    rng = np.random.default_rng(seed)
    with make_engine(where) as one, make_engine(where) as other:
        for _ in range(3):
            part, aside = Part(rng), Part(rng)
            abandoned = one.lookup(aside.features)
            handle = one.lookup(part.features, nested(part.weights))
            one.lookup(aside.features, training=False)
            expected, wanted = by_queue(other, part)
            all_same(leaves_of(handle.activations), expected)
            found = handle.apply_gradients(nested(part.gradients), weight_gradients=True)
            all_same(leaves_of(found), wanted)
            all_same(leaves_of(handle.activations), expected)
            abandoned.drop()
        assert seen(one) == seen(other)
        assert one.in_flight == 0


@pytest.mark.parametrize("exchange", ["exact", "partial"])
@each_backend
@given(seed=seeds, count=st.integers(1, 4))
@settings(max_examples=8, deadline=None)
def test_several_in_a_step_are_one_joined_batch(
    where: str, exchange: str, seed: int, count: int
) -> None:
    rng = np.random.default_rng(seed)
    with make_engine(where, exchange) as one, make_engine(where, exchange) as other:
        for _ in range(2):
            parts = [Part(rng) for _ in range(count)]
            handles = [one.lookup(part.features, nested(part.weights)) for part in parts]
            pairs = [
                (handle, nested(part.gradients))
                for handle, part in zip(handles, parts, strict=True)
            ]
            found = one.apply(pairs, weight_gradients=True)
            _, wanted = by_queue(other, joined(parts))
            for at, whole in enumerate(wanted):
                of_parts = [leaves_of(own)[at] for own in found]
                own = [part.weights[at] is not None for part in parts]
                used = [part.gradients[at] is not None for part in parts]
                assert [one is not None for one in of_parts] == [
                    a and b for a, b in zip(own, used, strict=True)
                ]
                if whole is not None and all(a for a, b in zip(own, used, strict=True) if b):
                    same(np.concatenate([one for one in of_parts if one is not None]), whole)
            assert seen(one) == seen(other)
        assert one.in_flight == 0


@pytest.mark.parametrize("where", ["cpu", "sim", "dictionary"])
@given(seed=seeds)
@settings(max_examples=4, deadline=None)
def test_several_in_a_step_agree_with_the_model(where: str, seed: int) -> None:
    """The third oracle: loops over occurrences, one joined batch, nothing shared with either."""
    rng = np.random.default_rng(seed)
    with make_engine(where) as one, make_engine("model") as model:
        for _ in range(2):
            parts = [Part(rng) for _ in range(3)]
            held = [one.lookup(part.features, nested(part.weights)) for part in parts]
            one.apply([(h, nested(part.gradients)) for h, part in zip(held, parts, strict=True)])
            by_queue(model, joined(parts))
        for name in ("items", "users"):  # chance differs by the last bit of what it rounds
            wanted = np.asarray(model.tables[name])
            np.testing.assert_allclose(np.asarray(one.tables[name]), wanted, rtol=1e-5, atol=1e-6)
            for slot, values in one.slots[name].items():
                wanted = np.asarray(model.slots[name][slot])
                np.testing.assert_allclose(np.asarray(values), wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("where", ["cpu", "sim", "dictionary", "model"])
def test_blocks_of_4096_are_counted_across_lookups(where: str) -> None:
    """The order of the sum of a row's gradients, to the last bit of float32."""
    table = TableConfig(5, 1, initializer=sc.initializers.Zeros(), combiner="sum", name="t")
    sizes = (3000, 2500, 1)
    gradients = np.random.default_rng(1).normal(size=(sum(sizes), 1)).astype(np.float32)
    e = sc.ShardedEmbedding(FeatureConfig(table), sc.optimizers.SGD(1.0), **BACKENDS[where]())
    cuts = np.split(gradients, np.cumsum(sizes)[:-1])
    e.apply([(e.lookup(np.full(len(cut), 2)), cut) for cut in cuts])
    first = np.cumsum(gradients[:4096, 0], dtype=np.float32)[-1]
    total = first + np.cumsum(gradients[4096:, 0], dtype=np.float32)[-1]
    wrong = np.float32(0)
    for cut in cuts:
        wrong = wrong + np.cumsum(cut[:, 0], dtype=np.float32)[-1]
    assert wrong != total  # the order shows
    assert np.asarray(e.tables["t"])[2, 0] == -total


@each_backend
def test_the_order_is_by_feature_first_and_by_lookup_second(where: str) -> None:
    """Three summands of one row whose sum shows which two were added first."""
    table = TableConfig(3, 1, initializer=sc.initializers.Zeros(), combiner="sum", name="t")
    config = {"a": FeatureConfig(table), "b": FeatureConfig(table)}
    big, small = np.float32(2**24), np.float32(1)
    with sc.ShardedEmbedding(config, sc.optimizers.SGD(1.0), **BACKENDS[where]()) as e:
        none: list[list[int]] = []
        first, second = e.lookup({"a": [[1]], "b": [[1]]}), e.lookup({"a": [[1]], "b": none})
        e.apply(
            [
                (first, {"a": [[big]], "b": [[small]]}),
                (second, {"a": [[-big]], "b": np.zeros((0, 1))}),
            ]
        )
        # (big - big) + small; by lookup first it were (big + small) - big, which is 0.
        assert e.tables["t"][1].tolist() == [-1.0]


def test_learning_rates_are_asked_once_for_a_step() -> None:
    asked = []
    table = TableConfig(3, 1, initializer=sc.initializers.Zeros(), combiner="sum", name="t")
    with sc.ShardedEmbedding(
        FeatureConfig(table), sc.optimizers.SGD(lambda: asked.append(1) or 0.5)
    ) as e:
        e.apply([(e.lookup([[1]]), [[1.0]]), (e.lookup([[2]]), [[1.0]])], weight_gradients=True)
        assert (len(asked), e.step, e.metrics()["steps"]) == (1, 1, 1)
        assert e.tables["t"][:, 0].tolist() == [0.0, -0.5, -0.5]


def test_a_row_that_two_lookups_name_is_updated_once() -> None:
    """Adagrad gives another row for two gradients than for their sum."""
    start = sc.initializers.Constant(1.0)
    table = TableConfig(2, 1, initializer=start, combiner="sum", name="t")
    adagrad = sc.optimizers.Adagrad(learning_rate=1.0, initial_accumulator_value=1.0)
    with sc.ShardedEmbedding(FeatureConfig(table), adagrad) as e:
        e.apply([(e.lookup([[1]]), [[1.0]]), (e.lookup([[1]]), [[1.0]])])
        assert e.slots["t"]["accumulators"][1].tolist() == [5.0]
        assert e.metrics()["unique_rows"] == 1


@each_backend
def test_nothing_and_none_in_a_step(where: str) -> None:
    """None for all drops a lookup; where all are dropped, no step is counted."""
    rng = np.random.default_rng(0)
    with make_engine(where) as one, make_engine(where) as other:
        part = Part(rng)
        pairs = [(one.lookup(part.features), None) for _ in range(2)]
        assert one.apply(pairs) is None
        assert (one.step, one.in_flight) == (0, 0)
        (found,) = one.apply([(one.lookup(part.features), None)], weight_gradients=True)
        assert leaves_of(found) == [None] * 5
        kept = one.lookup(part.features, nested(part.weights))
        one.apply([(one.lookup(part.features), None), (kept, nested(part.gradients))])
        by_queue(other, part)
        assert seen(one) == seen(other)

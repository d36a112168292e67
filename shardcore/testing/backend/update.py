"""Gradients are applied."""

from __future__ import annotations

import numpy as np
import pytest

from shardcore import optimizers
from shardcore.backend.messages import TableBatch, TableUpdate
from shardcore.errors import ShardcoreError
from shardcore.initializers.constants import Constant
from shardcore.optimizer.base import Optimizer
from shardcore.testing.agreement import assert_agree
from shardcore.testing.backend.fixtures import BackendFixtures, Combiner, each_combiner, each_dtype
from shardcore.testing.backend.sums import in_blocks, in_order, of_many_sizes
from shardcore.testing.requests import (
    Probe,
    Refusing,
    bags_of,
    gradient_of,
    joined,
    make_bags,
    make_spec,
    read_only,
)
from shardcore.testing.twins import Twins


class UpdateTests(BackendFixtures):
    """`apply`, `reseed` and `weight_dots`."""

    @each_dtype
    @each_combiner
    @pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
    def test_apply(
        self, twins: Twins, rng: np.random.Generator, dtype: str, combiner: Combiner, weighted: bool
    ) -> None:
        """Several steps over two tables; hyper, step, row ids and slots reach the optimizer."""
        self._need(dtype)
        wide = twins.create(make_spec("wide", 29, 18, dtype, Probe(0.5, 0.25)))
        thin = twins.create(make_spec("thin", 3, 1, dtype, Probe(), layout="mod"))
        for step in (1, 2, 7):
            features = [
                make_bags(rng, wide, 20, combiner=combiner, weighted=weighted),
                make_bags(rng, wide, 11, ids_dtype="int32"),
            ]
            others = [make_bags(rng, thin, 20, combiner=combiner, weighted=weighted)]
            first, second = twins.lookup(("wide", features), ("thin", others), training=True)
            twins.apply(
                (first, [gradient_of(rng, wide, bags) for bags in features]),
                (second, [gradient_of(rng, thin, bags) for bags in others]),
                step=step,
            )
        twins.check_reads()

    @pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
    def test_apply_of_several_lookups_as_one_batch(
        self, twins: Twins, rng: np.random.Generator, weighted: bool
    ) -> None:
        """A batch that was not looked up as it is has no route; the backend finds its own."""
        spec = twins.create(make_spec("t", 29, 6, optimizer=Probe(0.5, 0.25)))
        parts = [make_bags(rng, spec, 12, combiner="mean", weighted=weighted) for _ in range(2)]
        other = make_bags(rng, spec, 24)
        for bags in parts:
            twins.lookup(("t", [bags, bags]), training=True)
        features = (joined(*parts), other, joined(*reversed(parts)))
        gradients = (gradient_of(rng, spec, other), None, gradient_of(rng, spec, other))
        assert spec.optimizer is not None
        pair = [
            TableUpdate(TableBatch("t", features, training=True), gradients, (0.5, 0.25), 3)
            for _ in range(2)
        ]
        near = max(1e-5, self._limit or 0.0)
        found, expected = twins.backend.weight_dots(pair[0]), twins.model.weight_dots(pair[1])
        assert expected[2] is not None
        assert_agree(found[2], expected[2], "weight_dots of feature 2: dots", near)
        twins.apply_pairs([(pair[0], pair[1])])
        twins.check_reads()

    @each_dtype
    @pytest.mark.parametrize("name", ["SGD", "Adagrad"])
    def test_apply_with_the_optimizers_that_come_with_shardcore(
        self, twins: Twins, rng: np.random.Generator, dtype: str, name: str
    ) -> None:
        """Those have a compiled form, which a backend on a CPU may call."""
        optimizer: Optimizer = getattr(optimizers, name)(learning_rate=0.25)
        spec = twins.create(make_spec("t", 40, 19, self._need(dtype), optimizer))
        for step in (1, 2, 3):
            bags = make_bags(rng, spec, 30, combiner="mean", weighted=True)
            (looked,) = twins.lookup(("t", [bags]), training=True)
            twins.apply((looked, [gradient_of(rng, spec, bags)]), step=step)

    @pytest.mark.parametrize("placement", ["row", "table", "column", "replicated"])
    def test_apply_takes_chance_from_the_seed(
        self, twins: Twins, rng: np.random.Generator, placement: str
    ) -> None:
        """That of the table, and another from `reseed` on; what is stored stays as it is."""
        optimizer = optimizers.SGD(learning_rate=0.25, stochastic_rounding=True)
        dtype = self._need("float16")
        begin = Constant(1.0)
        spec = make_spec("t", 40, 19, dtype, optimizer, placement=placement, initializer=begin)
        if placement not in twins.backend.capabilities.placements:
            pytest.skip(f"the backend has no placement {placement!r}")
        twins.create(spec)
        for step, seed in ((1, None), (2, 12), (3, 2**64 - 1)):
            if seed is not None:
                twins.reseed("t", seed)
            bags = make_bags(rng, spec, 30)
            (looked,) = twins.lookup(("t", [bags]), training=True)
            # Sums of such numbers are exact in any order: all that is rounded is what is stored.
            steps = (rng.integers(-(2**16), 2**16, (30, 19)) * 2.0**-16).astype(np.float32)
            update, models = looked.updates([steps], step)
            twins.backend.apply([update])
            twins.model.apply([models])
            expected = twins.model.arrays["t", None]
            assert_agree(twins.raw("t"), expected, f"rows after step {step}, seed {seed}: rows")

    def test_apply_updates_a_row_once_however_often_it_is_named(self, twins: Twins) -> None:
        """Adagrad gives other rows for gradients applied one by one than for their sum."""
        optimizer = optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=1.0)
        spec = make_spec("t", 3, 2, optimizer=optimizer, initializer=Constant(1.0))
        twins.create(spec)
        ids, splits = np.array([2, 2, 0, 2]), np.array([0, 2, 4])
        one, two = (bags_of(spec, ids.copy(), splits.copy(), None, "sum") for _ in range(2))
        (looked,) = twins.lookup(("t", [one, two]), training=True)
        ones = np.ones((2, 2), np.float32)
        twins.apply((looked, [ones, ones]), step=1)
        # Row 2 is named six times in all: 1 + 36 in the accumulator.
        assert_agree(
            twins.raw("t", "accumulators")[:, 0],
            np.array([5.0, 1.0, 37.0], np.float32),
            "accumulators",
            self._limit,
        )

    @pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
    def test_apply_sums_gradients_in_the_order_of_the_contract(
        self, twins: Twins, weighted: bool
    ) -> None:
        """(feature, bag, position), in blocks of 4,096; numbers whose sum depends on the order."""
        if not self.exact:
            pytest.skip("the backend gives its sums in no defined order (exact = False)")
        spec = make_spec(
            "t", 6, 3, optimizer=optimizers.SGD(learning_rate=1.0), initializer=Constant(0.0)
        )
        twins.create(spec)
        rng = np.random.default_rng(4)
        features, gradients = [], []
        for num_bags in (3001, 2600, 4100):
            lengths = rng.integers(0, 4, num_bags)
            lengths[0] = 2
            splits = np.concatenate([[0], np.cumsum(lengths)])
            ids = np.where(rng.random(splits[-1]) < 0.8, 4, rng.integers(0, 6, splits[-1]))
            weights = rng.uniform(-1, 1, splits[-1]) if weighted else None
            features.append(bags_of(spec, ids, splits, weights, "sum"))
            gradients.append(read_only(of_many_sizes(num_bags, 3, seed=num_bags)))
        if not weighted:
            parts = [
                gradient[
                    np.repeat(np.arange(bags.num_bags), np.diff(bags.row_splits))[bags.ids == 4]
                ]
                for bags, gradient in zip(features, gradients, strict=True)
            ]
            received = np.concatenate(parts)
            assert len(received) > 2 * 4096
            assert not np.array_equal(in_order(received), in_blocks(received))
        (looked,) = twins.lookup(("t", features), training=True)
        twins.apply((looked, gradients), step=1)
        if not weighted:
            assert_agree(-twins.raw("t")[4], in_blocks(received), "sum of the gradients of row 4")

    @pytest.mark.parametrize("count", [1, 2, 4095, 4096, 4097, 8192, 8193])
    def test_apply_to_a_row_named_very_often(self, twins: Twins, count: int) -> None:
        """Around the borders of the blocks of 4,096."""
        spec = make_spec("t", 4, 2, optimizer=Probe())
        twins.create(spec)
        rng = np.random.default_rng(count)
        ids, splits = np.full(count, 3), np.arange(count + 1)
        bags = bags_of(spec, ids, splits, None, "sum")
        (looked,) = twins.lookup(("t", [bags]), training=True)
        # Dyadic: every order gives the same sum, so inexact backends are asked as well.
        gradient = rng.integers(-8, 9, (count, 2)).astype(np.float32) / 1024
        twins.apply((looked, [read_only(gradient)]), step=1)

    def test_apply_leaves_rows_alone_that_no_gradient_names(
        self, twins: Twins, rng: np.random.Generator
    ) -> None:
        """A feature with gradient None touches nothing; a gradient of zeros touches its rows."""
        spec = twins.create(make_spec("t", 30, 4, optimizer=Probe()))
        low, high = np.array([1, 2, 2]), np.array([20, 21, 2])
        splits = np.array([0, 1, 3])
        features = [bags_of(spec, ids, splits.copy(), None, "mean") for ids in (low, high)]
        before = twins.raw("t")
        (looked,) = twins.lookup(("t", features), training=True)
        twins.apply((looked, [None, np.zeros((2, 4), np.float32)]), step=1)
        changed = np.flatnonzero((twins.raw("t") != before).any(axis=1))
        assert changed.tolist() == [2, 20, 21]
        (looked,) = twins.lookup(("t", features), training=True)
        twins.apply((looked, [gradient_of(rng, spec, features[0]), None]), step=2)
        (looked,) = twins.lookup(("t", features), training=True)
        twins.apply(
            (looked, [gradient_of(rng, spec, features[0]), gradient_of(rng, spec, features[1])]),
            step=3,
        )

    def test_apply_of_nothing(self, twins: Twins) -> None:
        """No update, no bag, no id."""
        twins.backend.apply([])
        spec = twins.create(make_spec("t", 8, 3, optimizer=Probe()))
        none = np.empty(0, np.int64)
        for splits in ([0], [0, 0, 0]):
            row_splits = np.array(splits, np.int64)
            for weights, combiner in ((None, "sum"), (None, "mean"), (none, "sqrtn")):
                bags = bags_of(spec, none, row_splits, weights, combiner)
                (looked,) = twins.lookup(("t", [bags, bags]), training=True)
                gradient = np.zeros((bags.num_bags, 3), np.float32)
                twins.apply((looked, [gradient, None]), step=1)
                (looked,) = twins.lookup(("t", [bags, bags]), training=True)
                twins.apply((looked, [gradient, gradient]), step=2)

    def test_two_batches_in_flight(self, twins: Twins, rng: np.random.Generator) -> None:
        """Both are looked up before either is applied, with a lookup of a server between."""
        spec = twins.create(make_spec("t", 15, 4, optimizer=Probe()))
        bags = [make_bags(rng, spec, 20, combiner="mean") for _ in range(2)]
        (first,) = twins.lookup(("t", [bags[0]]), training=True)
        (second,) = twins.lookup(("t", [bags[1]]), training=True)
        twins.apply((first, [gradient_of(rng, spec, bags[0])]), step=1)
        twins.lookup(("t", [bags[1]]))
        twins.apply((second, [gradient_of(rng, spec, bags[1])]), step=2)
        twins.lookup(("t", bags))

    def test_apply_that_fails_changes_nothing(self, twins: Twins, rng: np.random.Generator) -> None:
        """The optimizer's error comes through; rows are as they were, and the backend works on.

        Those of the tables before it in the batch, too.
        """
        first = twins.create(make_spec("first", 12, 4, optimizer=Probe()))
        spec = twins.create(make_spec("t", 12, 4, optimizer=Refusing()))
        bags, others = make_bags(rng, spec, 10), make_bags(rng, first, 10)
        before, looked = twins.lookup(("first", [others]), ("t", [bags]), training=True)
        updates = [
            before.updates([gradient_of(rng, first, others)], 1)[0],
            looked.updates([gradient_of(rng, spec, bags)], 1)[0],
        ]
        for refused in (updates[1:], updates):
            with pytest.raises(ShardcoreError, match="this update always fails"):
                twins.backend.apply(refused)
            twins.check_storage()
        twins.lookup(("t", [bags]))
        twins.scatter("t", None, np.array([1]), np.ones((1, 4), np.float32))
        twins.check_storage()

    @each_dtype
    @pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
    def test_weight_dots(
        self, twins: Twins, rng: np.random.Generator, dtype: str, weighted: bool
    ) -> None:
        """Per occurrence row times gradient, whatever the weights; None for no gradient."""
        self._need(dtype)
        for dim in (1, 8, 21):
            name = f"t{dim}"
            spec = twins.create(make_spec(name, 25, dim, dtype, Probe()))
            features = [
                make_bags(rng, spec, 14, combiner="mean", weighted=weighted),
                make_bags(rng, spec, 14),
                bags_of(spec, np.empty(0, np.int64), np.zeros(15, np.int64), None, "sum"),
            ]
            (looked,) = twins.lookup((name, features), training=True)
            gradients = [gradient_of(rng, spec, bags) for bags in features]
            pair = looked.updates([gradients[0], None, gradients[2]], 1)
            found, expected = twins.backend.weight_dots(pair[0]), twins.model.weight_dots(pair[1])
            assert len(found) == 3
            assert found[1] is None
            for at in (0, 2):
                wanted = expected[at]
                assert wanted is not None
                # The order of a dot product is the backend's own.
                near = 1e-5 if wanted.dtype == np.float32 else 1e-12
                limit = max(near, 0.0 if self.exact else self.tolerance)
                assert_agree(found[at], wanted, f"weight_dots of feature {at}: dots", limit)
            twins.check_storage()

"""Backends whose updates are wrong."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
from broken.backends.models import Suite
from broken.found_by import found_by

from shardcore.backend import FeatureBags, TableBatch, TableUpdate
from shardcore.testing import ModelBackend


@found_by(
    "test_apply_sums_gradients_in_the_order_of_the_contract",
    "stored rows of table 't': rows[4, 0] is",
)
class TestSumsGradientsWithoutBlocks(Suite):
    class Faulty(ModelBackend):
        def _changes(self, update):
            from shardcore.testing import model

            block, model.RUN_BLOCK = model.RUN_BLOCK, 10**9
            try:
                return super()._changes(update)
            finally:
                model.RUN_BLOCK = block


@found_by("test_apply_to_a_row_named_very_often", "stored rows of table 't': rows[3, 0] is")
class TestLosesALongRunsTail(Suite):
    class Faulty(ModelBackend):
        def _changes(self, update):
            features = tuple(
                FeatureBags(bags.ids[:4096], np.minimum(bags.row_splits, 4096))
                for bags in update.batch.features
            )
            batch = TableBatch(update.batch.table, features, True)
            return super()._changes(TableUpdate(batch, update.gradients, update.hyper, update.step))


@found_by(
    "test_apply_updates_a_row_once_however_often_it_is_named",
    "stored rows of table 't': rows[0, 0] is",
)
class TestAppliesFeaturesOneByOne(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            for update in updates:
                for at, gradient in enumerate(update.gradients):
                    alone = [None] * len(update.gradients)
                    alone[at] = gradient
                    super().apply(
                        [TableUpdate(update.batch, tuple(alone), update.hyper, update.step)]
                    )


@found_by(
    "test_apply_leaves_rows_alone_that_no_gradient_names", "stored rows of table 't': rows[1, 0] is"
)
class TestTakesNoneForZeros(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            filled = []
            for update in updates:
                dim = self.specs[update.batch.table].dim
                gradients = tuple(
                    np.zeros((bags.num_bags, dim), np.float32) if gradient is None else gradient
                    for bags, gradient in zip(update.batch.features, update.gradients, strict=True)
                )
                filled.append(TableUpdate(update.batch, gradients, update.hyper, update.step))
            super().apply(filled)


@found_by("test_apply", "stored rows of table 'wide': rows[")
class TestStepsAreAllTheFirst(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            super().apply([TableUpdate(u.batch, u.gradients, u.hyper, 1) for u in updates])


@found_by(
    "test_apply_with_the_optimizers_that_come_with_shardcore",
    "stored rows of table 't': rows[0, 0] is",
)
class TestForgetsHyper(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            super().apply(
                [
                    TableUpdate(u.batch, u.gradients, tuple(0.125 for _ in u.hyper), u.step)
                    for u in updates
                ]
            )


@found_by("test_apply", "stored rows of table 'thin': rows[0, 0] is")
class TestAppliesTheFirstTableOnly(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            super().apply(updates[:1])


@found_by("test_two_batches_in_flight", "stored rows of table 't': rows[0, 0] is")
class TestAppliesTheLastBatchLookedUp(Suite):
    class Faulty(ModelBackend):
        def lookup(self, batches):
            self.last = {batch.table: batch for batch in batches}
            return super().lookup(batches)

        def apply(self, updates):
            super().apply(
                [
                    TableUpdate(self.last[u.batch.table], u.gradients, u.hyper, u.step)
                    for u in updates
                ]
            )


@found_by("test_apply_of_nothing", "a batch without ids")
class TestAppliesOnlyToRowsThatExist(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            assert all(u.batch.features[0].ids.size for u in updates), "a batch without ids"
            super().apply(updates)


@found_by("test_apply_takes_chance_from_the_seed", "specs must have the seed as given")
class TestKeepsItsSeed(Suite):
    class Faulty(ModelBackend):
        def reseed(self, table, seed):
            pass


@found_by("test_apply_takes_chance_from_the_seed", "rows after step 2, seed 12: rows[1, 0] is")
class TestTakesTheSeedItWasCreatedWith(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            super().make_table(spec)
            self.first = {**getattr(self, "first", {}), spec.name: spec.seed}

        def _changes(self, update):
            now = self.specs
            self.specs = {
                name: dataclasses.replace(spec, seed=self.first[name]) for name, spec in now.items()
            }
            changes = super()._changes(update)
            self.specs = now
            return changes


@found_by("test_apply_that_fails_changes_nothing", "stored rows of table 't': rows[0, 0] is 0.609")
class TestLeavesHalfAnUpdate(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            for update in updates:
                rows = np.unique(update.batch.features[0].ids)
                self.arrays[update.batch.table, None][rows] += 1
                super().apply([update])
                self.arrays[update.batch.table, None][rows] -= 1


@found_by("test_apply_that_fails_changes_nothing", "stored rows of table 'first': rows[")
class TestAppliesTablesUntilOneFails(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            for update in updates:
                super().apply([update])


@found_by(
    "test_lookups_see_each_row_wholly_before_or_after_an_update", "is torn between two updates"
)
class TestTearsRows(Suite):
    class Faulty(ModelBackend):
        def lookup(self, batches):
            return [[self._combined(b.table, bags) for bags in b.features] for b in batches]

        def scatter(self, table, slot, rows, values):
            stored = self.arrays[table, slot]
            half = stored.shape[1] // 2
            stored[rows, :half] = values[:, :half]
            time.sleep(0.005)
            stored[rows, half:] = values[:, half:]


@found_by("test_two_batches_in_flight", "stored rows of table 't': rows[0, 0] is")
class TestLosesUpdatesToLookups(Suite):
    class Faulty(ModelBackend):
        def lookup(self, batches):
            found = super().lookup(batches)
            if not batches or batches[0].training:
                return found
            for batch in batches:
                self.arrays[batch.table, None][0] -= 1
            return found


@found_by("test_apply_of_several_lookups_as_one_batch", "stored rows of table 't': rows[")
class TestNeedsARoute(Suite):
    class Faulty(ModelBackend):
        def lookup(self, batches):
            for batch in batches:
                batch.route = True
            return super().lookup(batches)

        def apply(self, updates):
            super().apply([update for update in updates if update.batch.route])


@found_by("test_weight_dots", "weight_dots of feature 0: dots[0] is")
class TestDotsOfTheWrongRows(Suite):
    class Faulty(ModelBackend):
        def _dots(self, table, bags, gradient):
            return super()._dots(table, bags, gradient) * 2

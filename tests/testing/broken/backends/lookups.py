"""Backends whose activations are wrong."""

from __future__ import annotations

import dataclasses

import numpy as np
from broken.backends.models import Inexact, Suite, reversed_bags
from broken.found_by import found_by

from shardcore.backend import FeatureBags, TableBatch
from shardcore.store import DIVIDED
from shardcore.testing import ModelBackend


@found_by("test_lookup", "activations of table 't3', feature 0: out[59, 0] is 0.0, expected")
class TestDropsABag(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            out = super()._combined(table, bags)
            out[-1:] = 0
            return out


@found_by(
    "test_lookup_sums_a_bag_in_occurrence_order",
    "activations of table 't', feature 0: out[1, 0] is",
)
class TestSumsBagsBackwards(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            return super()._combined(table, reversed_bags(bags))


@found_by(
    "test_lookup_of_nothing",
    "activations of table 'div', feature 0: out[0, 0] is nan, expected 0.0",
)
class TestDividesByZero(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            out = super()._combined(table, bags)
            if bags.divisors is not None:
                out[bags.divisors == 0] = np.nan
            return out


@found_by(
    "test_lookup_of_several_bags_per_sample",
    "out must be float32 of shape (0, 4), got float64 of shape (0, 4)",
)
class TestGivesFloat64(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            return super()._combined(table, bags).astype(np.float64)


@found_by("test_lookup_of_several_features_and_tables", "lookup must return an array per feature")
class TestForgetsAFeature(Suite):
    class Faulty(ModelBackend):
        def lookup(self, batches):
            return [found[:1] for found in super().lookup(batches)]


@found_by("test_lookup_of_nothing", "a batch without bags")
class TestFailsOnNothing(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            assert bags.num_bags, "a batch without bags"
            return super()._combined(table, bags)


@found_by("test_lookup_into_an_array", "lookup_into of table 't': out")
class TestAddsToWhatIsThere(Suite):
    class Faulty(ModelBackend):
        def lookup_into(self, table, bags, out):
            ((found,),) = self.lookup([TableBatch(table, (bags,))])
            out += found


@found_by("test_lookup_of_bags_as_they_are_given", "lookup_given of table 't': out")
class TestSumsGivenBagsForTheirMean(Suite):
    class Faulty(ModelBackend):
        def lookup_given(self, table, ids, row_splits, weights, divided, out):
            if row_splits[-1] != ids.size or ids.max() >= self.specs[table].num_rows:
                return False
            ((out[...],),) = self.lookup([TableBatch(table, (FeatureBags(ids, row_splits),))])
            return True


@found_by(
    "test_lookup_of_bags_as_they_are_given",
    "lookup_given of table 't' must refuse ids and row splits",
)
class TestTakesGivenBagsUnchecked(Suite):
    class Faulty(ModelBackend):
        def lookup_given(self, table, ids, row_splits, weights, divided, out):
            if divided != DIVIDED["sum"]:
                return False
            bags = FeatureBags(ids % self.specs[table].num_rows, row_splits)
            ((out[...],),) = self.lookup([TableBatch(table, (bags,))])
            return True


@found_by("test_lookup_of_several_bags_per_sample", "got float32 of shape (1, 4)")
class TestReadsBagsAsSamples(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            return super()._combined(table, bags)[:: bags.bags_per_sample]


@found_by("test_lookup_takes_ids_of_both_types", "is out of bounds for axis 0 with size 30")
class TestTakesIdsForInt64(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            ids = np.frombuffer(bags.ids.tobytes().ljust(bags.ids.size * 8, b"\0"), np.int64)
            whole = FeatureBags(ids, bags.row_splits, bags.weights, bags.divisors)
            return super()._combined(table, whole)


@found_by(
    "test_lookup_of_many_bags", "activations of table 't', feature 0: out[1024, 0] is 0.0, expected"
)
class TestLosesTheLastBagsOfMany(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            out = super()._combined(table, bags)
            out[1024:] = 0
            return out


@found_by("test_lookup_of_quantized_rows", "stored rows of table 't': rows[0, 0] is")
class TestRoundsWhatIsStored(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            super().make_table(spec)
            rows = self.arrays[spec.name, None]
            rows[...] = spec.as_looked_up(rows)


@found_by("test_lookup_of_rows_of_a_greatest_norm", "activations of table 't', feature 0: out[")
class TestForgetsTheNorm(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            spec = self.specs[table]
            self.specs[table] = dataclasses.replace(spec, max_norm=None)
            try:
                return super()._combined(table, bags)
            finally:
                self.specs[table] = spec


@found_by("test_lookup_of_rows_of_a_greatest_norm", "stored rows of table 't': rows[")
class TestStoresScaledRows(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            super().make_table(spec)
            self.arrays[spec.name, None] = spec.as_looked_up(self.arrays[spec.name, None])


class TestInexactAndSaysSo(Suite):
    Faulty = Inexact
    exact = False


@found_by("test_lookup", "activations of table 't1', feature 0: out[0, 0] is")
class TestInexactAndDoesNotSay(Suite):
    Faulty = Inexact

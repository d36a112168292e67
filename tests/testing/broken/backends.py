"""Backends with one fault each, and `FAULTS`: the test that must find it, and with which words.

Not collected by name; `test_conformance.py` runs it.
"""

from __future__ import annotations

import dataclasses
import itertools
import time

import numpy as np
import pytest

from shardcore.backend import Capabilities, FeatureBags, TableBatch, TableUpdate
from shardcore.backend.from_rows import gradients_on_host
from shardcore.errors import ShardcoreValueError
from shardcore.sharding import Layout
from shardcore.testing import BackendConformance, ModelBackend


class Suite(BackendConformance):
    Faulty: type = ModelBackend

    @pytest.fixture
    def backend(self):
        return self.Faulty()

    @pytest.fixture
    def raw_rows(self):
        return lambda backend, table, slot: backend.arrays[table, slot]


def reversed_bags(bags):
    """The same bags, each from its last id to its first."""
    order = np.concatenate(
        [np.arange(lo, hi)[::-1] for lo, hi in itertools.pairwise(bags.row_splits)]
        or [np.empty(0, np.int64)]
    ).astype(np.int64)
    weights = None if bags.weights is None else bags.weights[order]
    return FeatureBags(bags.ids[order], bags.row_splits, weights, bags.divisors)


class TestDropsABag(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            out = super()._combined(table, bags)
            out[-1:] = 0
            return out


class TestSumsBagsBackwards(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            return super()._combined(table, reversed_bags(bags))


class TestDividesByZero(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            out = super()._combined(table, bags)
            if bags.divisors is not None:
                out[bags.divisors == 0] = np.nan
            return out


class TestGivesFloat64(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            return super()._combined(table, bags).astype(np.float64)


class TestForgetsAFeature(Suite):
    class Faulty(ModelBackend):
        def lookup(self, batches):
            return [found[:1] for found in super().lookup(batches)]


class TestFailsOnNothing(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            assert bags.num_bags, "a batch without bags"
            return super()._combined(table, bags)


class TestAddsToWhatIsThere(Suite):
    class Faulty(ModelBackend):
        def lookup_into(self, table, bags, out):
            ((found,),) = self.lookup([TableBatch(table, (bags,))])
            out += found


class TestReadsBagsAsSamples(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            return super()._combined(table, bags)[:: bags.bags_per_sample]


class TestTakesIdsForInt64(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            ids = np.frombuffer(bags.ids.tobytes().ljust(bags.ids.size * 8, b"\0"), np.int64)
            whole = FeatureBags(ids, bags.row_splits, bags.weights, bags.divisors)
            return super()._combined(table, whole)


class TestLosesTheLastBagsOfMany(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            out = super()._combined(table, bags)
            out[1024:] = 0
            return out


class TestRoundsWhatIsStored(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            super().make_table(spec)
            rows = self.arrays[spec.name, None]
            rows[...] = spec.as_looked_up(rows)


class TestSumsGradientsWithoutBlocks(Suite):
    class Faulty(ModelBackend):
        def _changes(self, update):
            from shardcore.testing import model

            block, model.RUN_BLOCK = model.RUN_BLOCK, 10**9
            try:
                return super()._changes(update)
            finally:
                model.RUN_BLOCK = block


class TestLosesALongRunsTail(Suite):
    class Faulty(ModelBackend):
        def _changes(self, update):
            features = tuple(
                FeatureBags(bags.ids[:4096], np.minimum(bags.row_splits, 4096))
                for bags in update.batch.features
            )
            batch = TableBatch(update.batch.table, features, True)
            return super()._changes(TableUpdate(batch, update.gradients, update.hyper, update.step))


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


class TestStepsAreAllTheFirst(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            super().apply([TableUpdate(u.batch, u.gradients, u.hyper, 1) for u in updates])


class TestForgetsHyper(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            super().apply(
                [
                    TableUpdate(u.batch, u.gradients, tuple(0.125 for _ in u.hyper), u.step)
                    for u in updates
                ]
            )


class TestAppliesTheFirstTableOnly(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            super().apply(updates[:1])


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


class TestAppliesOnlyToRowsThatExist(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            assert all(u.batch.features[0].ids.size for u in updates), "a batch without ids"
            super().apply(updates)


class TestKeepsItsSeed(Suite):
    class Faulty(ModelBackend):
        def reseed(self, table, seed):
            pass


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


class TestLeavesHalfAnUpdate(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            for update in updates:
                rows = np.unique(update.batch.features[0].ids)
                self.arrays[update.batch.table, None][rows] += 1
                super().apply([update])
                self.arrays[update.batch.table, None][rows] -= 1


class TestAppliesTablesUntilOneFails(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            for update in updates:
                super().apply([update])


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


class TestLosesUpdatesToLookups(Suite):
    class Faulty(ModelBackend):
        def lookup(self, batches):
            found = super().lookup(batches)
            if not batches or batches[0].training:
                return found
            for batch in batches:
                self.arrays[batch.table, None][0] -= 1
            return found


class TestScatterAdds(Suite):
    class Faulty(ModelBackend):
        def scatter(self, table, slot, rows, values):
            self.arrays[table, slot][rows] += values


class TestWritesOneRowTooMany(Suite):
    class Faulty(ModelBackend):
        def write(self, table, slot, start, values):
            super().write(table, slot, start, values)
            if len(values):
                self.arrays[table, slot][start + len(values) :][:1] = values[-1]


class TestIsWrongBothWays(Suite):
    """Scatter and gather agree with each other, not with what is stored."""

    class Faulty(ModelBackend):
        def gather(self, table, slot, rows):
            return super().gather(table, slot, len(self.arrays[table, slot]) - 1 - rows)

        def scatter(self, table, slot, rows, values):
            super().scatter(table, slot, len(self.arrays[table, slot]) - 1 - rows, values)


class TestGathersInOrderOfRows(Suite):
    class Faulty(ModelBackend):
        def gather(self, table, slot, rows):
            return super().gather(table, slot, np.sort(rows))


class TestReadsViews(Suite):
    class Faulty(ModelBackend):
        def read(self, table, slot, start, stop):
            return self.arrays[table, slot][start:stop]


class TestHasAShardTooMany(Suite):
    class Faulty(ModelBackend):
        def layout(self, table):
            return Layout.div(self.specs[table].num_rows, 2)


class TestShiftsInitialRows(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            super().make_table(spec)
            self.arrays[spec.name, None] = np.roll(self.arrays[spec.name, None], 1, axis=0)


class TestFillsSlotsWithZeros(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            super().make_table(spec)
            for (table, slot), array in self.arrays.items():
                if table == spec.name and slot is not None:
                    array[...] = 0


class TestFillsSlotsOfOtherRows(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            super().make_table(spec)
            for (table, slot), array in self.arrays.items():
                if table == spec.name and slot is not None:
                    array[...] = np.roll(array, 1, axis=0)


class TestLeavesHalfATable(Suite):
    class Faulty(ModelBackend):
        def drop_table(self, table):
            self.remove_table(table)
            if (table, None) in self.arrays:
                del self.specs[table]


class TestKeepsSlotsOfDroppedTables(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            kept = {key: array for key, array in self.arrays.items() if key[1] is not None}
            super().make_table(spec)
            self.arrays.update({key: kept[key] for key in kept if key[0] == spec.name})

        def remove_table(self, table):
            self.arrays.pop((table, None), None)


class TestRefusesWithoutAReason(Suite):
    class Faulty(ModelBackend):
        capabilities = Capabilities(placements=("row",))

        def check_table(self, spec):
            if spec.placement != "row":
                raise ShardcoreValueError("not supported")


class TestTakesDtypesItDoesNotName(Suite):
    class Faulty(ModelBackend):
        capabilities = Capabilities(dtypes=("float32",))

        def check_table(self, spec):
            pass


class TestTakesSlotsItDoesNotName(Suite):
    class Faulty(ModelBackend):
        capabilities = Capabilities(slot_dtypes=("float32", "float16"))

        def check_table(self, spec):
            super().check_table(dataclasses.replace(spec, optimizer=None))


class TestPromisesMoreThanItDoes(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            if spec.placement == "column":
                raise ShardcoreValueError(f"table {spec.name!r} cannot have 'column'")
            super().make_table(spec)


class TestIgnoresRowCounts(Suite):
    class Faulty(ModelBackend):
        num_hosts = 2

        def layout(self, table):
            return Layout.div(self.specs[table].num_rows, 2)


class TestTakesRowCountsOfOtherHosts(Suite):
    class Faulty(ModelBackend):
        num_hosts = 2

        def check_table(self, spec):
            self.capabilities.check_table(spec, self.name)


class TestForgetsToRound(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            specs, self.specs = (
                self.specs,
                {
                    name: dataclasses.replace(spec, quantization=None)
                    for name, spec in self.specs.items()
                },
            )
            try:
                return super()._combined(table, bags)
            finally:
                self.specs = specs


class TestForgetsTheNorm(Suite):
    class Faulty(ModelBackend):
        def _combined(self, table, bags):
            spec = self.specs[table]
            self.specs[table] = dataclasses.replace(spec, max_norm=None)
            try:
                return super()._combined(table, bags)
            finally:
                self.specs[table] = spec


class TestStoresScaledRows(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            super().make_table(spec)
            self.arrays[spec.name, None] = spec.as_looked_up(self.arrays[spec.name, None])


class TestTakesANameTwice(Suite):
    class Faulty(ModelBackend):
        def create_table(self, spec):
            self.specs.pop(spec.name, None)
            super().create_table(spec)


class TestGivesTablesOfOneCallOneSeed(Suite):
    class Faulty(ModelBackend):
        def make_tables(self, specs):
            super().make_tables([dataclasses.replace(spec, seed=specs[0].seed) for spec in specs])


class TestKeepsTheFirstOfTablesThatFail(Suite):
    class Faulty(ModelBackend):
        def create_tables(self, specs):
            for spec in specs:
                super().create_tables([spec])


class TestNeedsARoute(Suite):
    class Faulty(ModelBackend):
        def lookup(self, batches):
            for batch in batches:
                batch.route = True
            return super().lookup(batches)

        def apply(self, updates):
            super().apply([update for update in updates if update.batch.route])


class TestDotsOfTheWrongRows(Suite):
    class Faulty(ModelBackend):
        def _dots(self, table, bags, gradient):
            return super()._dots(table, bags, gradient) * 2


class TestKeepsTablesAfterClose(Suite):
    class Faulty(ModelBackend):
        def close(self):
            pass


class TestCountsInFloats(Suite):
    class Faulty(ModelBackend):
        def counters(self):
            return {"bytes": 0.5}


class TestBreaksUnderTheEngine(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            if updates and updates[0].batch.table == "users":
                updates = updates[::2]
            super().apply(updates)


class TestBreaksInASequenceOnly(Suite):
    """The first update after a write to the table is lost."""

    max_examples = 300  # it stops at the first that fails; that there is one must be certain

    class Faulty(ModelBackend):
        written = frozenset()

        def make_table(self, spec):
            super().make_table(spec)
            self.written -= {spec.name}

        def write(self, table, slot, start, values):
            super().write(table, slot, start, values)
            self.written |= {table}

        def apply(self, updates):
            super().apply([u for u in updates if u.batch.table not in self.written])
            self.written -= {u.batch.table for u in updates}


class TestGivesNoFixtures(BackendConformance):
    pass


class DeviceArray:
    """An array that only its device computes with."""

    def __init__(self, array):
        self.array = np.asarray(array)
        self.shape, self.dtype = self.array.shape, self.array.dtype

    def reshape(self, *shape):
        return DeviceArray(self.array.reshape(*shape))

    def __array__(self, dtype=None, copy=None):
        return np.array(self.array, dtype)


class Inexact(ModelBackend):
    """Its bags and gradients are off by a few units in the last place."""

    def _combined(self, table, bags):
        out = super()._combined(table, reversed_bags(bags))
        return (out * (1 + 3e-7)).astype(out.dtype)

    def _received(self, update):
        return {
            row: [(grad * (1 - 3e-7)).astype(grad.dtype) for grad in gradients]
            for row, gradients in super()._received(update).items()
        }


class Device(ModelBackend):
    """Tables on a device, without float64; reports what it refused when it is asked."""

    capabilities = Capabilities(
        ("float32", "float16", "bfloat16"),
        device_arrays=True,
        slot_dtypes=("float32", "float16", "bfloat16"),
    )

    def __init__(self):
        super().__init__()
        self.report = None

    def check_updates(self, wait):
        report, self.report = self.report, None
        return report

    def lookup(self, batches):
        return [[DeviceArray(one) for one in found] for found in super().lookup(batches)]

    def takes_gradient(self, gradient):
        return isinstance(gradient, DeviceArray)

    def on_host(self, updates):
        return gradients_on_host(updates, self.specs)

    def apply(self, updates):
        ready, found = self.on_host(updates)
        if found is None:
            super().apply(ready)
        else:
            report = self.report or dataclasses.replace(found, step=updates[0].step)
            self.report = dataclasses.replace(report, updates=report.updates + 1)

    def weight_dots(self, update):
        (ready,), _ = self.on_host([dataclasses.replace(update, check=False)])
        return super().weight_dots(ready)


class InexactDevice(Inexact, Device):
    """Inexact, and with arrays of its own."""


class DeviceSuite(Suite):
    Faulty = Device

    @pytest.fixture
    def to_device(self):
        return lambda backend, array: DeviceArray(array.copy())


class TestOnADevice(DeviceSuite):
    """Nothing is wrong with it."""


class TestInexactOnADeviceAndSaysSo(DeviceSuite):
    Faulty = InexactDevice
    exact = False


class TestMakesNoDeviceArrays(Suite):
    Faulty = Device


class TestTakesHalvesForTheirBits(DeviceSuite):
    class Faulty(Device):
        def on_host(self, updates):
            return super().on_host([self.misread(update) for update in updates])

        def misread(self, update):
            gradients = tuple(
                DeviceArray(one.array.view(np.uint16))
                if isinstance(one, DeviceArray) and one.dtype.itemsize == 2
                else one
                for one in update.gradients
            )
            return dataclasses.replace(update, gradients=gradients)


class TestDotsOnTheDevice(DeviceSuite):
    class Faulty(Device):
        def weight_dots(self, update):
            return [
                None if one is None else DeviceArray(one) for one in super().weight_dots(update)
            ]


class TestRefusesTableByTable(DeviceSuite):
    class Faulty(Device):
        def apply(self, updates):
            for update in updates:
                super().apply([update])


class TestCountsNoUpdates(DeviceSuite):
    class Faulty(Device):
        def check_updates(self, wait):
            report = super().check_updates(wait)
            return None if report is None else dataclasses.replace(report, updates=0)


class TestRefusesAllThatFollows(DeviceSuite):
    class Faulty(Device):
        def apply(self, updates):
            if self.report is None:
                super().apply(updates)
            else:
                self.report = dataclasses.replace(self.report, updates=self.report.updates + 1)

        def check_updates(self, wait):
            return super().check_updates(wait) if wait else None


class TestNamesNoStep(DeviceSuite):
    class Faulty(Device):
        def check_updates(self, wait):
            report = super().check_updates(wait)
            return None if report is None else dataclasses.replace(report, step=0)


class TestReportsTheLastValue(DeviceSuite):
    class Faulty(Device):
        def check_updates(self, wait):
            report = super().check_updates(wait)
            if report is None:
                return None
            return dataclasses.replace(report, bag=report.bag + 1, column=0)


class TestReportsAgain(DeviceSuite):
    class Faulty(Device):
        def check_updates(self, wait):
            return self.report


class TestForgetsReportsOfDroppedTables(DeviceSuite):
    class Faulty(Device):
        def remove_table(self, table):
            super().remove_table(table)
            self.report = None


class TestTestsWhatItIsNotAskedTo(DeviceSuite):
    class Faulty(Device):
        def on_host(self, updates):
            return super().on_host([dataclasses.replace(one, check=True) for one in updates])


class TestGivesActivationsThatChange(DeviceSuite):
    class Faulty(Device):
        def lookup(self, batches):
            for arrays in getattr(self, "last", []):
                for one in arrays:
                    one.array[...] = 0
            self.last = super().lookup(batches)
            return self.last


class TestInexactAndSaysSo(Suite):
    Faulty = Inexact
    exact = False


class TestInexactAndDoesNotSay(Suite):
    Faulty = Inexact


FAULTS = {
    "TestDropsABag": (
        "test_lookup",
        "activations of table 't3', feature 0: out[59, 0] is 0.0, expected",
    ),
    "TestSumsBagsBackwards": (
        "test_lookup_sums_a_bag_in_occurrence_order",
        "activations of table 't', feature 0: out[1, 0] is",
    ),
    "TestDividesByZero": (
        "test_lookup_of_nothing",
        "activations of table 'div', feature 0: out[0, 0] is nan, expected 0.0",
    ),
    "TestGivesFloat64": (
        "test_lookup_of_several_bags_per_sample",
        "out must be float32 of shape (0, 4), got float64 of shape (0, 4)",
    ),
    "TestForgetsAFeature": (
        "test_lookup_of_several_features_and_tables",
        "lookup must return an array per feature",
    ),
    "TestFailsOnNothing": (
        "test_lookup_of_nothing",
        "a batch without bags",
    ),
    "TestAddsToWhatIsThere": (
        "test_lookup_into_an_array",
        "lookup_into of table 't': out",
    ),
    "TestReadsBagsAsSamples": (
        "test_lookup_of_several_bags_per_sample",
        "got float32 of shape (1, 4)",
    ),
    "TestTakesIdsForInt64": (
        "test_lookup_takes_ids_of_both_types",
        "is out of bounds for axis 0 with size 30",
    ),
    "TestLosesTheLastBagsOfMany": (
        "test_lookup_of_many_bags",
        "activations of table 't', feature 0: out[1024, 0] is 0.0, expected",
    ),
    "TestRoundsWhatIsStored": (
        "test_lookup_of_quantized_rows",
        "stored rows of table 't': rows[0, 0] is",
    ),
    "TestSumsGradientsWithoutBlocks": (
        "test_apply_sums_gradients_in_the_order_of_the_contract",
        "stored rows of table 't': rows[4, 0] is",
    ),
    "TestLosesALongRunsTail": (
        "test_apply_to_a_row_named_very_often",
        "stored rows of table 't': rows[3, 0] is",
    ),
    "TestAppliesFeaturesOneByOne": (
        "test_apply_updates_a_row_once_however_often_it_is_named",
        "stored rows of table 't': rows[0, 0] is",
    ),
    "TestTakesNoneForZeros": (
        "test_apply_leaves_rows_alone_that_no_gradient_names",
        "stored rows of table 't': rows[1, 0] is",
    ),
    "TestStepsAreAllTheFirst": (
        "test_apply",
        "stored rows of table 'wide': rows[",
    ),
    "TestForgetsHyper": (
        "test_apply_with_the_optimizers_that_come_with_shardcore",
        "stored rows of table 't': rows[0, 0] is",
    ),
    "TestAppliesTheFirstTableOnly": (
        "test_apply",
        "stored rows of table 'thin': rows[0, 0] is",
    ),
    "TestAppliesTheLastBatchLookedUp": (
        "test_two_batches_in_flight",
        "stored rows of table 't': rows[0, 0] is",
    ),
    "TestAppliesOnlyToRowsThatExist": (
        "test_apply_of_nothing",
        "a batch without ids",
    ),
    "TestLeavesHalfAnUpdate": (
        "test_apply_that_fails_changes_nothing",
        "stored rows of table 't': rows[0, 0] is 0.609",
    ),
    "TestAppliesTablesUntilOneFails": (
        "test_apply_that_fails_changes_nothing",
        "stored rows of table 'first': rows[",
    ),
    "TestTearsRows": (
        "test_lookups_see_each_row_wholly_before_or_after_an_update",
        "is torn between two updates",
    ),
    "TestLosesUpdatesToLookups": (
        "test_two_batches_in_flight",
        "stored rows of table 't': rows[0, 0] is",
    ),
    "TestScatterAdds": (
        "test_scatter_and_write_change_those_rows_only",
        "stored rows of table 't': rows[0, 0] is",
    ),
    "TestWritesOneRowTooMany": (
        "test_scatter_and_write_change_those_rows_only",
        "stored rows of table 't': rows[6, 0] is",
    ),
    "TestIsWrongBothWays": (
        "test_scatter_and_write_change_those_rows_only",
        "stored rows of table 't': rows[0, 0] is 1.0, expected 2.25",
    ),
    "TestKeepsItsSeed": (
        "test_apply_takes_chance_from_the_seed",
        "specs must have the seed as given",
    ),
    "TestTakesTheSeedItWasCreatedWith": (
        "test_apply_takes_chance_from_the_seed",
        "rows after step 2, seed 12: rows[1, 0] is",
    ),
    "TestGathersInOrderOfRows": (
        "test_gather_read_shards",
        "gather[0, 0] is 0.0, expected 13.75",
    ),
    "TestReadsViews": (
        "test_what_comes_out_and_goes_in_is_copied",
        "stored rows of table 't': rows[0, 0] is 99.0, expected",
    ),
    "TestHasAShardTooMany": (
        "test_layout_says_where_rows_are",
        "Layout.div(23, 2).num_shards",
    ),
    "TestShiftsInitialRows": (
        "test_create_fills_rows_from_the_initializer",
        "rows[0, 0] is 1.0, expected 0.0",
    ),
    "TestFillsSlotsWithZeros": (
        "test_create_fills_slots",
        "values of slot 'constants': values[0, 0] is 0.0, expected 0.5",
    ),
    "TestFillsSlotsOfOtherRows": (
        "test_create_fills_slots",
        "values of slot 'normals': values[0, 0] is",
    ),
    "TestLeavesHalfATable": (
        "test_create_that_fails_changes_nothing",
        "specs must hold the tables that exist",
    ),
    "TestKeepsSlotsOfDroppedTables": (
        "test_drop_forgets_that_table_only",
        "stored velocities of table 'a': rows must be float32 of shape (7, 6), got float32 of "
        "shape (10, 4)",
    ),
    "TestRefusesWithoutAReason": (
        "test_tables_are_as_the_capabilities_say",
        "the message must name the table",
    ),
    "TestTakesDtypesItDoesNotName": (
        "test_tables_are_as_the_capabilities_say",
        "DID NOT RAISE ShardcoreError",
    ),
    "TestTakesSlotsItDoesNotName": (
        "test_a_slot_of_another_dtype_is_refused",
        "DID NOT RAISE ShardcoreError",
    ),
    "TestPromisesMoreThanItDoes": (
        "test_tables_are_as_the_capabilities_say",
        "table 't' cannot have 'column'",
    ),
    "TestIgnoresRowCounts": (
        "test_layout_has_the_row_counts_of_the_table",
        "a layout must have the row counts of the table",
    ),
    "TestTakesRowCountsOfOtherHosts": (
        "test_layout_has_the_row_counts_of_the_table",
        "DID NOT RAISE ShardcoreValueError",
    ),
    "TestForgetsToRound": (
        "test_tables_are_as_the_capabilities_say",
        "activations of table 't', feature 0: out[",
    ),
    "TestForgetsTheNorm": (
        "test_lookup_of_rows_of_a_greatest_norm",
        "activations of table 't', feature 0: out[",
    ),
    "TestStoresScaledRows": (
        "test_lookup_of_rows_of_a_greatest_norm",
        "stored rows of table 't': rows[",
    ),
    "TestTakesANameTwice": (
        "test_a_name_is_taken_once",
        "DID NOT RAISE ShardcoreError",
    ),
    "TestGivesTablesOfOneCallOneSeed": (
        "test_tables_made_in_one_call_are_tables_of_their_own",
        "stored rows of table 'b': rows[0, 0] is",
    ),
    "TestKeepsTheFirstOfTablesThatFail": (
        "test_tables_made_in_one_call_are_tables_of_their_own",
        "has a table 'f' already",
    ),
    "TestNeedsARoute": (
        "test_apply_of_several_lookups_as_one_batch",
        "stored rows of table 't': rows[",
    ),
    "TestDotsOfTheWrongRows": (
        "test_weight_dots",
        "weight_dots of feature 0: dots[0] is",
    ),
    "TestKeepsTablesAfterClose": (
        "test_close",
        "assert {'t': TableSp",
    ),
    "TestCountsInFloats": (
        "test_is_a_backend",
        "counter 'bytes' must be an int",
    ),
    "TestBreaksUnderTheEngine": (
        "test_under_the_engine",
        "activations of 'history': out[0, 0, 0] is",
    ),
    "TestBreaksInASequenceOnly": (
        "test_state_machine",
        "state.write(",
    ),
    "TestGivesNoFixtures": (
        "test_close",
        "TestGivesNoFixtures must override the fixture 'backend': return a fresh backend "
        "without tables",
    ),
    "TestInexactAndDoesNotSay": (
        "test_lookup",
        "activations of table 't1', feature 0: out[0, 0] is",
    ),
    "TestMakesNoDeviceArrays": (
        "test_weight_dots_of_device_gradients",
        "TestMakesNoDeviceArrays must override the fixture 'to_device': return a callable "
        "(backend, array) -> an array that the backend takes for a gradient",
    ),
    "TestTakesHalvesForTheirBits": (
        "test_device_gradients_give_the_same_update",
        "stored rows of table 't': rows[2, 0] is -44",
    ),
    "TestDotsOnTheDevice": (
        "test_weight_dots_of_device_gradients",
        "weight_dots: dots must be a NumPy array, got DeviceArray",
    ),
    "TestRefusesTableByTable": (
        "test_device_gradients_that_are_not_finite_change_nothing",
        "stored rows of table 'a': rows[0, 0] is",
    ),
    "TestCountsNoUpdates": (
        "test_a_report_may_come_after_its_table",
        "assert 0 == 1",
    ),
    "TestRefusesAllThatFollows": (
        "test_device_gradients_that_are_not_finite_change_nothing",
        "stored rows of table 'a': rows[0, 0] is",
    ),
    "TestNamesNoStep": (
        "test_device_gradients_that_are_not_finite_change_nothing",
        "the report must name the step of the update",
    ),
    "TestReportsTheLastValue": (
        "test_device_gradients_that_are_not_finite_change_nothing",
        "(1, 5, 0)",
    ),
    "TestReportsAgain": (
        "test_device_gradients_that_are_not_finite_change_nothing",
        "a report comes once",
    ),
    "TestForgetsReportsOfDroppedTables": (
        "test_a_report_may_come_after_its_table",
        "assert None is not None",
    ),
    "TestTestsWhatItIsNotAskedTo": (
        "test_device_gradients_are_not_tested_unless_asked",
        "stored rows of table 't': rows[0, 0] is -0.390",
    ),
    "TestGivesActivationsThatChange": (
        "test_under_the_engine_on_the_device",
        "activations of 'user': out[0, 0] is 0.0, expected",
    ),
}

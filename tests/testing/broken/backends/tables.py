"""Backends that make, refuse, name or drop tables wrongly, or fail in a sequence of calls only."""

from __future__ import annotations

import dataclasses

from broken.backends.models import Suite
from broken.found_by import found_by

from shardcore.backend import Capabilities
from shardcore.errors import ShardcoreValueError
from shardcore.sharding import Layout
from shardcore.testing import BackendConformance, ModelBackend


@found_by("test_layout_says_where_rows_are", "Layout.div(23, 2).num_shards")
class TestHasAShardTooMany(Suite):
    class Faulty(ModelBackend):
        def layout(self, table):
            return Layout.div(self.specs[table].num_rows, 2)


@found_by("test_create_that_fails_changes_nothing", "specs must hold the tables that exist")
class TestLeavesHalfATable(Suite):
    class Faulty(ModelBackend):
        def drop_table(self, table):
            self.remove_table(table)
            if (table, None) in self.arrays:
                del self.specs[table]


@found_by(
    "test_drop_forgets_that_table_only",
    "stored velocities of table 'a': rows must be float32 of shape (7, 6), got float32 of "
    "shape (10, 4)",
)
class TestKeepsSlotsOfDroppedTables(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            kept = {key: array for key, array in self.arrays.items() if key[1] is not None}
            super().make_table(spec)
            self.arrays.update({key: kept[key] for key in kept if key[0] == spec.name})

        def remove_table(self, table):
            self.arrays.pop((table, None), None)


@found_by("test_tables_are_as_the_capabilities_say", "the message must name the table")
class TestRefusesWithoutAReason(Suite):
    class Faulty(ModelBackend):
        capabilities = Capabilities(placements=("row",))

        def check_table(self, spec):
            if spec.placement != "row":
                raise ShardcoreValueError("not supported")


@found_by("test_tables_are_as_the_capabilities_say", "DID NOT RAISE ShardcoreError")
class TestTakesDtypesItDoesNotName(Suite):
    class Faulty(ModelBackend):
        capabilities = Capabilities(dtypes=("float32",))

        def check_table(self, spec):
            pass


@found_by("test_a_slot_of_another_dtype_is_refused", "DID NOT RAISE ShardcoreError")
class TestTakesSlotsItDoesNotName(Suite):
    class Faulty(ModelBackend):
        capabilities = Capabilities(slot_dtypes=("float32", "float16"))

        def check_table(self, spec):
            super().check_table(dataclasses.replace(spec, optimizer=None))


@found_by("test_tables_are_as_the_capabilities_say", "table 't' cannot have 'column'")
class TestPromisesMoreThanItDoes(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            if spec.placement == "column":
                raise ShardcoreValueError(f"table {spec.name!r} cannot have 'column'")
            super().make_table(spec)


@found_by(
    "test_layout_has_the_row_counts_of_the_table", "a layout must have the row counts of the table"
)
class TestIgnoresRowCounts(Suite):
    class Faulty(ModelBackend):
        num_hosts = 2

        def layout(self, table):
            return Layout.div(self.specs[table].num_rows, 2)


@found_by("test_layout_has_the_row_counts_of_the_table", "DID NOT RAISE ShardcoreValueError")
class TestTakesRowCountsOfOtherHosts(Suite):
    class Faulty(ModelBackend):
        num_hosts = 2

        def check_table(self, spec):
            self.capabilities.check_table(spec, self.name)


@found_by("test_tables_are_as_the_capabilities_say", "activations of table 't', feature 0: out[")
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


@found_by("test_a_name_is_taken_once", "DID NOT RAISE ShardcoreError")
class TestTakesANameTwice(Suite):
    class Faulty(ModelBackend):
        def create_table(self, spec):
            self.specs.pop(spec.name, None)
            super().create_table(spec)


@found_by(
    "test_tables_made_in_one_call_are_tables_of_their_own",
    "stored rows of table 'b': rows[0, 0] is",
)
class TestGivesTablesOfOneCallOneSeed(Suite):
    class Faulty(ModelBackend):
        def make_tables(self, specs):
            super().make_tables([dataclasses.replace(spec, seed=specs[0].seed) for spec in specs])


@found_by("test_tables_made_in_one_call_are_tables_of_their_own", "has a table 'f' already")
class TestKeepsTheFirstOfTablesThatFail(Suite):
    class Faulty(ModelBackend):
        def create_tables(self, specs):
            for spec in specs:
                super().create_tables([spec])


@found_by("test_close", "assert {'t': TableSp")
class TestKeepsTablesAfterClose(Suite):
    class Faulty(ModelBackend):
        def close(self):
            pass


@found_by("test_is_a_backend", "counter 'bytes' must be an int")
class TestCountsInFloats(Suite):
    class Faulty(ModelBackend):
        def counters(self):
            return {"bytes": 0.5}


@found_by(
    "test_close",
    "TestGivesNoFixtures must override the fixture 'backend': return a fresh backend "
    "without tables",
)
class TestGivesNoFixtures(BackendConformance):
    pass


@found_by("test_under_the_engine", "activations of 'history': out[0, 0, 0] is")
class TestBreaksUnderTheEngine(Suite):
    class Faulty(ModelBackend):
        def apply(self, updates):
            if updates and updates[0].batch.table == "users":
                updates = updates[::2]
            super().apply(updates)


@found_by("test_state_machine", "state.write(")
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

"""Backends whose stored rows and slots are wrong: first values, reads, writes."""

from __future__ import annotations

import numpy as np
from broken.backends.models import Suite
from broken.found_by import found_by

from shardcore.testing import ModelBackend


@found_by(
    "test_scatter_and_write_change_those_rows_only", "stored rows of table 't': rows[0, 0] is"
)
class TestScatterAdds(Suite):
    class Faulty(ModelBackend):
        def scatter(self, table, slot, rows, values):
            self.arrays[table, slot][rows] += values


@found_by(
    "test_scatter_and_write_change_those_rows_only", "stored rows of table 't': rows[6, 0] is"
)
class TestWritesOneRowTooMany(Suite):
    class Faulty(ModelBackend):
        def write(self, table, slot, start, values):
            super().write(table, slot, start, values)
            if len(values):
                self.arrays[table, slot][start + len(values) :][:1] = values[-1]


@found_by(
    "test_scatter_and_write_change_those_rows_only",
    "stored rows of table 't': rows[0, 0] is 1.0, expected 2.25",
)
class TestIsWrongBothWays(Suite):
    """Scatter and gather agree with each other, not with what is stored."""

    class Faulty(ModelBackend):
        def gather(self, table, slot, rows):
            return super().gather(table, slot, len(self.arrays[table, slot]) - 1 - rows)

        def scatter(self, table, slot, rows, values):
            super().scatter(table, slot, len(self.arrays[table, slot]) - 1 - rows, values)


@found_by("test_gather_read_shards", "gather[0, 0] is 0.0, expected 13.75")
class TestGathersInOrderOfRows(Suite):
    class Faulty(ModelBackend):
        def gather(self, table, slot, rows):
            return super().gather(table, slot, np.sort(rows))


@found_by(
    "test_what_comes_out_and_goes_in_is_copied",
    "stored rows of table 't': rows[0, 0] is 99.0, expected",
)
class TestReadsViews(Suite):
    class Faulty(ModelBackend):
        def read(self, table, slot, start, stop):
            return self.arrays[table, slot][start:stop]


@found_by("test_create_fills_rows_from_the_initializer", "rows[0, 0] is 1.0, expected 0.0")
class TestShiftsInitialRows(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            super().make_table(spec)
            self.arrays[spec.name, None] = np.roll(self.arrays[spec.name, None], 1, axis=0)


@found_by(
    "test_create_fills_slots", "values of slot 'constants': values[0, 0] is 0.0, expected 0.5"
)
class TestFillsSlotsWithZeros(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            super().make_table(spec)
            for (table, slot), array in self.arrays.items():
                if table == spec.name and slot is not None:
                    array[...] = 0


@found_by("test_create_fills_slots", "values of slot 'normals': values[0, 0] is")
class TestFillsSlotsOfOtherRows(Suite):
    class Faulty(ModelBackend):
        def make_table(self, spec):
            super().make_table(spec)
            for (table, slot), array in self.arrays.items():
                if table == spec.name and slot is not None:
                    array[...] = np.roll(array, 1, axis=0)

"""Rows and slots are read and written."""

from __future__ import annotations

import numpy as np
import pytest

from shardcore.backend.messages import TableBatch
from shardcore.dtypes import working_dtype
from shardcore.errors import ShardcoreValueError
from shardcore.sharding.layout import Layout
from shardcore.testing.agreement import assert_agree
from shardcore.testing.backend.fixtures import BackendFixtures, each_dtype, each_layout
from shardcore.testing.requests import LayoutKind, Probe, make_bags, make_spec, read_only
from shardcore.testing.twins import Twins, looked_up


class RowTests(BackendFixtures):
    """`gather`, `scatter`, `read`, `write`, `shards` and `layout`."""

    @each_dtype
    @each_layout
    def test_gather_read_shards(self, twins: Twins, dtype: str, layout: LayoutKind) -> None:
        """They return what is stored, in request order, repeated rows and empty requests too."""
        cut = self._layout(twins.backend, layout, 23)
        spec = make_spec("t", 23, 5, self._need(dtype), Probe(), layout=cut)
        twins.create(spec)
        cut = self._layout(twins.backend, layout, 1)
        twins.create(make_spec("short", 1, 1, dtype, Probe(), layout=cut))
        for slot, width in ((None, 5), ("velocities", 5), ("peaks", 1), ("halves", 5)):
            values = np.arange(23 * width).reshape(23, width) / 8
            dtype_of_slot = twins.model.arrays["t", slot].dtype
            twins.scatter("t", slot, np.arange(23), values.astype(dtype_of_slot))
            stored = twins.raw("t", slot)
            for rows in ([22, 0, 5, 5, 22, 1], [7], []):
                asked = read_only(np.array(rows, np.int64))
                assert_agree(twins.backend.gather("t", slot, asked), stored[rows], "gather")
            for start, stop in ((0, 23), (4, 11), (22, 23), (9, 9)):
                read = twins.backend.read("t", slot, start, stop)
                assert_agree(read, stored[start:stop], f"read({start}, {stop})")
        twins.check_storage()
        twins.check_reads()

    def test_layout_says_where_rows_are(self, twins: Twins) -> None:
        """A layout has the table's rows and a shard per host."""
        twins.create(make_spec("t", 23, 5))
        twins.create(make_spec("m", 2, 5, layout="mod"))
        for table, num_rows in (("t", 23), ("m", 2)):
            layout = twins.backend.layout(table)
            assert isinstance(layout, Layout)
            assert layout.num_rows == num_rows
            assert layout.num_shards == twins.backend.num_hosts

    def test_layout_has_the_row_counts_of_the_table(self, twins: Twins) -> None:
        """Row counts are those of the hosts, in order; counts for other hosts are refused."""
        hosts, cut = twins.backend.num_hosts, self._layout(twins.backend, "ranges", 23)
        twins.create(make_spec("t", 23, 5, layout=cut))
        sizes = twins.backend.layout("t").shard_sizes.tolist()
        assert sizes == list(cut), "a layout must have the row counts of the table"
        twins.check_reads()
        other = make_spec("other", 23, 5, layout=(*cut, 0))
        if hosts == 1:
            twins.create(other)
            assert twins.backend.layout("other").shard_sizes.tolist() == [23]
            return
        with pytest.raises(ShardcoreValueError, match="'other'"):
            twins.backend.create_table(other)
        assert "other" not in twins.backend.specs

    @each_dtype
    def test_scatter_and_write_change_those_rows_only(self, twins: Twins, dtype: str) -> None:
        """Distinct rows in any order, ranges, empty ones too; neighbours and other slots stay."""
        spec = twins.create(make_spec("t", 23, 5, self._need(dtype), Probe()))
        twins.create(make_spec("other", 23, 5, dtype, Probe()))
        for slot, width, kind in (
            (None, 5, spec.dtype),
            ("velocities", 5, working_dtype(spec.dtype)),
            ("peaks", 1, working_dtype(spec.dtype)),
            ("halves", 5, np.dtype(np.float16)),
        ):
            for rows in ([22, 0, 13], [7], []):
                values = np.arange(len(rows) * width).reshape(len(rows), width) / 4 + 1
                given = read_only(values.astype(kind))
                twins.scatter("t", slot, read_only(np.array(rows, np.int64)), given)
                twins.check_storage()
            for start, count in ((0, 23), (20, 3), (5, 1), (23, 0)):
                values = np.arange(count * width).reshape(count, width) / 4 - start
                twins.write("t", slot, start, read_only(values.astype(kind)))
                twins.check_storage()

    def test_what_comes_out_and_goes_in_is_copied(
        self, twins: Twins, rng: np.random.Generator
    ) -> None:
        """Writing to a result, or to values given before, changes no table."""
        spec = twins.create(make_spec("t", 12, 4, optimizer=Probe()))
        bags = make_bags(rng, spec, 3)
        whole = np.arange(12)
        results = [
            twins.backend.gather("t", None, whole),
            twins.backend.gather("t", "peaks", whole),
            twins.backend.read("t", None, 0, 12),
            twins.backend.read("t", "velocities", 0, 12),
            *twins.backend.shards("t", None),
            *twins.backend.shards("t", "peaks"),
            looked_up(twins.backend, [TableBatch("t", (bags,))])[0][0],
        ]
        for result in results:
            if result.flags.writeable:
                result[...] = 99
        twins.check_storage()
        values, more = np.ones((12, 4), np.float32), np.ones((12, 4), np.float32)
        twins.scatter("t", None, whole, values)
        twins.write("t", "velocities", 0, more)
        values[...] = 99
        more[...] = 99
        assert (twins.raw("t") == 1).all(), "scatter must copy the values"
        assert (twins.raw("t", "velocities") == 1).all(), "write must copy the values"

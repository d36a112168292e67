"""A backend of its own, and tables that come and go."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardcore import optimizers
from shardcore.backend.base import Backend
from shardcore.backend.messages import TableBatch
from shardcore.backend.quantization import QuantizationConfig
from shardcore.dtypes import TABLE_DTYPES, as_dtype, working_dtype
from shardcore.errors import ShardcoreError
from shardcore.initializers.base import derived_seed
from shardcore.initializers.constants import Constant, RowId
from shardcore.initializers.distributions import Normal, TruncatedNormal
from shardcore.initializers.filling import as_initializer
from shardcore.testing.agreement import assert_agree
from shardcore.testing.backend.fixtures import BackendFixtures, each_dtype, each_layout
from shardcore.testing.beginnings import Declared, FromRows
from shardcore.testing.requests import (
    LayoutKind,
    Probe,
    gradient_of,
    layout_over,
    make_bags,
    make_spec,
)
from shardcore.testing.twins import RawRows, Twins, looked_up


class TableTests(BackendFixtures):
    """Creating, dropping and refusing tables."""

    def test_is_a_backend(self, backend: Backend) -> None:
        """A fresh one has a name, hosts and counters, and no tables."""
        assert isinstance(backend, Backend)
        assert re.fullmatch("[a-z][a-z0-9_]*", backend.name)
        assert type(backend.num_hosts) is int
        assert backend.num_hosts >= 1
        assert backend.specs == {}
        for name, count in backend.counters().items():
            assert type(name) is str
            assert type(count) is int, f"counter {name!r} must be an int"

    def test_close(self, backend: Backend) -> None:
        """Close gives everything back, tables there or not."""
        backend.create_table(make_spec("t", 5, 2))
        backend.close()
        assert backend.specs == {}

    @each_dtype
    @each_layout
    def test_create_fills_rows_from_the_initializer(
        self, backend: Backend, raw_rows: RawRows, dtype: str, layout: LayoutKind
    ) -> None:
        """Rows depend on the initializer, the seed and their own number, never on the layout."""
        dtype = self._need(dtype)
        given = np.random.default_rng(1).uniform(-1, 1, (130, 16))
        of_an_array = as_initializer(given, (130, 16), as_dtype(dtype))
        cases: list[tuple[int, int, Any, int]] = [
            (1, 1, RowId(), 0),
            (2, 5, RowId(), 0),
            (130, 16, of_an_array, 0),
            (131, 3, TruncatedNormal(), 3),
            (131, 3, TruncatedNormal(), 2**64 - 1),
            (40, 70, Constant(-2.5), 0),
        ]
        for at, (num_rows, dim, initializer, seed) in enumerate(cases):
            cut = self._layout(backend, layout, num_rows)
            spec = make_spec(
                f"t{at}", num_rows, dim, dtype, initializer=initializer, seed=seed, layout=cut
            )
            backend.create_table(spec)
            row_ids = np.arange(num_rows, dtype=np.int64)
            wanted = np.array(initializer(row_ids, (dim,), spec.dtype, seed), spec.dtype)
            assert_agree(np.array(raw_rows(backend, spec.name, None)), wanted, "rows")

    @each_dtype
    def test_create_fills_slots(self, twins: Twins, dtype: str) -> None:
        """Slots begin as the optimizer says: from numbers, arrays, initializers or the rows."""
        spec = twins.create(make_spec("t", 11, 4, self._need(dtype), Probe()))
        assert twins.raw("t", "velocities").shape == (11, 4)
        assert twins.raw("t", "peaks").shape == (11, 1)
        assert twins.raw("t", "halves").dtype == np.float16
        assert twins.raw("t", "velocities").dtype == working_dtype(spec.dtype)
        spec = twins.create(make_spec("declared", 11, 4, dtype, Declared(11, 4)))
        ids, elements = np.arange(11), np.arange(44.0).reshape(11, 4)
        seed, value = derived_seed(spec.seed, "normals"), working_dtype(spec.dtype)
        wanted: dict[str, NDArray[Any]] = {
            "constants": np.full((11, 4), 0.5, value),
            "normals": Normal()(ids, (4,), value, seed),
            "numbers": (1000 + ids[:, None]).astype(np.float32),
            "elements": (elements / 4).astype(spec.dtype),
            "halves": (elements[:, :1] - 1.5).astype(np.float16),
        }
        for slot, array in wanted.items():
            assert_agree(twins.raw("declared", slot), array, f"values of slot {slot!r}: values")
        twins.create(make_spec("from rows", 11, 4, dtype, FromRows()))
        doubles = 2 * twins.raw("from rows").astype(value)
        assert_agree(twins.raw("from rows", "doubles"), doubles, "a slot made from rows: values")
        assert_agree(
            twins.raw("from rows", "numbers"),
            ids[:, None].astype(np.float32),
            "their numbers: values",
        )
        twins.check_storage()

    def test_create_that_fails_changes_nothing(self, twins: Twins) -> None:
        """An initializer's error comes through, and the name is free as before."""
        twins.create(make_spec("other", 9, 2, optimizer=Probe()))

        def failing(rows: Any, row_shape: Any, dtype: Any, seed: int) -> Any:
            raise ArithmeticError("no value for these rows")

        with pytest.raises(ArithmeticError, match="no value for these rows"):
            twins.backend.create_table(make_spec("t", 50, 4, initializer=failing))
        twins.check_storage()
        twins.create(make_spec("t", 6, 3, optimizer=Probe()))
        twins.check_storage()
        twins.check_reads()

    @pytest.mark.parametrize(
        "fields",
        [
            {"placement": "table"},
            {"placement": "column"},
            {"placement": "replicated"},
            {"exchange": "partial"},
            {"quantization": QuantizationConfig(3, -1.0, 1.0)},
            {"layout": "ranges"},
            {"max_norm": 0.5},
            *({"dtype": dtype} for dtype in TABLE_DTYPES),
        ],
        ids=lambda fields: "-".join(str(value) for value in fields.values()),
    )
    def test_tables_are_as_the_capabilities_say(
        self, twins: Twins, rng: np.random.Generator, fields: dict[str, Any]
    ) -> None:
        """Declared tables work; others are refused, naming the table and the value."""
        ((field, value),) = fields.items()
        able = twins.backend.capabilities
        if value == "bfloat16":
            pytest.importorskip("ml_dtypes")
        has = {
            "placement": value in able.placements,
            "exchange": value in able.exchanges,
            "quantization": able.quantization,
            "layout": value in able.layouts,
            "max_norm": able.max_norm,
            "dtype": value in able.dtypes,
        }[field]
        if field == "layout":
            value = layout_over(twins.backend.num_hosts, value, 20)
        spec = make_spec("t", 20, 4, optimizer=optimizers.Adagrad(), **{field: value})
        if not has:
            with pytest.raises(ShardcoreError) as caught:
                twins.backend.create_table(spec)
            assert "table 't'" in str(caught.value), "the message must name the table"
            shown = value if field == "dtype" else repr(value)
            assert shown in str(caught.value), "the message must show the value"
            assert twins.backend.specs == {}
            twins.create(make_spec("t", 20, 4))
            twins.check_storage()
            return
        twins.create(spec)
        bags = make_bags(rng, spec, 12)
        if spec.exchange == "partial":  # its sums have an order of their own
            batches = [TableBatch("t", (bags,)) for _ in range(2)]
            ours = looked_up(twins.backend, batches[:1])[0][0]
            expected = twins.model.lookup(batches[1:])[0][0]
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
            return
        (looked,) = twins.lookup(("t", [bags]), training=True)
        twins.apply((looked, [gradient_of(rng, spec, bags)]), step=1)

    def test_a_slot_of_another_dtype_is_refused(self, backend: Backend) -> None:
        """A slot's own dtype must be among those declared."""
        known = backend.capabilities.slot_dtypes
        others = sorted({"float16", "float64"} - set(known or ("float16", "float64")))
        if not others:
            pytest.skip("the backend has slots of every dtype")
        for dtype in others:
            optimizer = optimizers.Adagrad(slot_dtype=dtype)
            with pytest.raises(ShardcoreError, match="slot 'accumulators' of table 't'"):
                backend.create_table(make_spec("t", 4, 2, optimizer=optimizer))
            assert backend.specs == {}

    def test_a_name_is_taken_once(self, twins: Twins) -> None:
        """A second table of a name is refused, and the first stays as it is."""
        twins.create(make_spec("t", 6, 3, optimizer=Probe()))
        with pytest.raises(ShardcoreError, match="has a table 't' already"):
            twins.backend.create_table(make_spec("t", 9, 2))
        with pytest.raises(ShardcoreError, match="has a table 'u' already"):
            twins.backend.create_tables([make_spec("u", 9, 2), make_spec("u", 9, 2)])
        twins.check_storage()
        twins.check_reads()

    def test_drop_forgets_that_table_only(self, twins: Twins) -> None:
        """A dropped name can be created anew, with another shape and fresh slots."""
        twins.create(make_spec("a", 10, 4, optimizer=Probe()))
        twins.create(make_spec("b", 10, 4, optimizer=Probe(), seed=8))
        twins.scatter("a", None, np.array([3]), np.full((1, 4), 9, np.float32))
        twins.scatter("b", "peaks", np.array([3]), np.full((1, 1), 9, np.float32))
        twins.drop("a")
        twins.check_storage()
        twins.create(make_spec("a", 7, 6, optimizer=Probe()))
        twins.check_storage()
        twins.check_reads()

    @pytest.mark.parametrize("placement", ["row", "table", "column", "replicated"])
    def test_tables_made_in_one_call_are_tables_of_their_own(
        self, twins: Twins, rng: np.random.Generator, placement: str
    ) -> None:
        """Alike or not: rows, slots, seed, layout, row ids; any of them in a batch or an update."""
        able = twins.backend.capabilities
        if placement not in able.placements:
            pytest.skip(f"the backend has no placement {placement!r}")
        hosts = twins.backend.num_hosts
        kinds: list[Any] = sorted(able.layouts)
        specs = [
            make_spec(
                name,
                rows,
                6,
                optimizer=Probe(0.5, 0.25) if name != "d" else optimizers.Adagrad(0.5),
                layout=layout_over(hosts, kinds[at % len(kinds)], rows),
                placement=placement,
                seed=at,
            )
            for at, (name, rows) in enumerate((("a", 9), ("b", 1), ("c", 14), ("d", 8), ("e", 23)))
        ]
        twins.create_together(specs)
        twins.check_storage()
        twins.check_reads()
        of = {spec.name: spec for spec in specs}
        for step, names in enumerate(("abcde", "ecb", "a", "bd"), 1):
            features = {
                name: [make_bags(rng, of[name], 9, weighted=at > 1) for at in range(1 + at % 2)]
                for at, name in enumerate(names)
            }
            looked = twins.lookup(*features.items(), training=True)
            given = [
                [gradient_of(rng, of[name], bags) for bags in features[name]] for name in names
            ]
            shares = list(zip(looked, given, strict=True))
            if step == 1:  # of one batch, all tables but one, by other hyper-parameters, turned
                pairs = [one.updates(gradients, step) for one, gradients in shares[:0:-1]]
                twins.apply_pairs(
                    [
                        (replace(ours, hyper=(0.125, 0.5)), replace(theirs, hyper=(0.125, 0.5)))
                        if ours.batch.table in "ce"
                        else (ours, theirs)
                        for ours, theirs in pairs
                    ]
                )
            else:
                twins.apply(*shares, step=step)
        twins.scatter("c", "peaks", np.array([3]), np.full((1, 1), 9, np.float32))
        twins.drop("b")
        twins.check_storage()
        twins.check_reads()

        def failing(rows: Any, row_shape: Any, dtype: Any, seed: int) -> Any:
            raise ArithmeticError("no value for these rows")

        more = [make_spec("f", 5, 6), make_spec("g", 5, 6, initializer=failing)]
        with pytest.raises(ArithmeticError, match="no value for these rows"):
            twins.backend.create_tables(more)
        twins.create_together(more[:1])
        twins.check_storage()
        twins.check_reads()

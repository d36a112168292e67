"""The battery of tests that every backend passes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from shardcore import optimizers
from shardcore.backend.base import Backend
from shardcore.backend.messages import TableBatch, TableUpdate
from shardcore.backend.quantization import QuantizationConfig
from shardcore.dtypes import TABLE_DTYPES, as_dtype, working_dtype
from shardcore.engine.embedding import ShardedEmbedding
from shardcore.errors import ShardcoreError, UnavailableError, UpdateRefusedError
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.initializers.base import derived_seed
from shardcore.initializers.constants import Constant, RowId
from shardcore.initializers.distributions import Normal, TruncatedNormal
from shardcore.initializers.filling import as_initializer
from shardcore.optimizer.base import Optimizer
from shardcore.sharding.layout import Layout
from shardcore.testing.agreement import assert_agree
from shardcore.testing.beginnings import Declared, FromRows
from shardcore.testing.model import ModelBackend
from shardcore.testing.requests import (
    Probe,
    Refusing,
    bags_of,
    gradient_of,
    make_bags,
    make_spec,
    read_only,
)
from shardcore.testing.state_machine import run_machine
from shardcore.testing.twins import RawRows, ToDevice, Twins, looked_up

__all__ = ["BackendConformance"]

each_dtype = pytest.mark.parametrize("dtype", TABLE_DTYPES)
each_combiner = pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])

Combiner = Literal["sum", "mean", "sqrtn"]

# A thread that has not finished by then never will.
PATIENCE_SECONDS = 60.0


class BackendConformance:
    """What every backend must do, as tests; the contract in words is `shardcore.backend`.

    Subclass it as ``TestSomething`` and override two fixtures:

    ``backend``
        A fresh `Backend` without tables.
    ``raw_rows``
        A callable ``raw_rows(backend, table, slot)`` that returns what is stored of the weights
        (slot None) or of a slot, shape (num_rows, dim) or (num_rows, 1), rows in the order of the
        whole table. It must not use the backend's own ways of reading, which are under test: a
        wrong `gather` could otherwise hide a wrong `scatter`.

    and, where the backend takes gradients on a device, a third:

    ``to_device``
        A callable ``to_device(backend, array)`` that returns the values of a NumPy array, float32,
        float16 or bfloat16, as an array that the backend takes for a gradient, of the same shape
        and dtype.

    Activations of a backend with ``device_arrays = True`` are read by `numpy.asarray`.

    Attributes
    ----------
    exact : bool, default True
        Whether its results are those of `ModelBackend` to the last bit, as the contract's order of
        sums makes possible.
    tolerance : float, default 1e-5
        Relative and absolute, where `exact` is False.
    dtypes : tuple of str, default all four table dtypes
        The dtypes its tables can have, float32 among them. It must refuse the others.
    max_examples, steps_per_example : int, default 20 and 30
        Runs of the state machine, and calls in each.

    Examples
    --------
    The suite of a backend that is exact but has no bfloat16:

    >>> class TestAcme(BackendConformance):
    ...     dtypes = ("float32", "float64", "float16")
    ...
    ...     @pytest.fixture
    ...     def backend(self):
    ...         return ModelBackend()
    ...
    ...     @pytest.fixture
    ...     def raw_rows(self):
    ...         return lambda backend, table, slot: backend.arrays[table, slot]
    """

    exact: ClassVar[bool] = True
    tolerance: ClassVar[float] = 1e-5
    dtypes: ClassVar[Sequence[str]] = TABLE_DTYPES
    max_examples: ClassVar[int] = 20
    steps_per_example: ClassVar[int] = 30

    # --- fixtures --------------------------------------------------------------------------------

    @pytest.fixture
    def backend(self) -> Backend:
        """Return a fresh backend without tables; to be overridden."""
        pytest.fail(
            f"{type(self).__name__} must override the fixture 'backend': "
            "return a fresh backend without tables"
        )

    @pytest.fixture
    def raw_rows(self) -> RawRows:
        """Return a reader of what is stored; to be overridden."""
        pytest.fail(
            f"{type(self).__name__} must override the fixture 'raw_rows': return a callable "
            "(backend, table, slot) -> stored rows that does not use the backend's reads"
        )

    @pytest.fixture
    def to_device(self, backend: Backend) -> ToDevice:
        """Return what makes arrays of the backend's own; to be overridden."""
        if not backend.device_arrays:
            pytest.skip("the backend has no arrays of its own (device_arrays = False)")
        pytest.fail(
            f"{type(self).__name__} must override the fixture 'to_device': return a callable "
            "(backend, array) -> an array that the backend takes for a gradient"
        )

    @pytest.fixture
    def twins(self, backend: Backend, raw_rows: RawRows) -> Twins:
        """Return the backend beside the model."""
        return Twins(backend, raw_rows, self._limit)

    @pytest.fixture
    def rng(self) -> np.random.Generator:
        """Return the source of the battery's random numbers."""
        return np.random.default_rng(20)

    @property
    def _limit(self) -> float | None:
        return None if self.exact else self.tolerance

    def _need(self, dtype: str) -> str:
        """Return a dtype of the battery, or skip the test."""
        if dtype not in self.dtypes:
            pytest.skip(f"the backend has no tables of {dtype}")
        try:
            as_dtype(dtype)
        except UnavailableError as error:
            pytest.skip(str(error))
        return dtype

    # --- the backend itself ----------------------------------------------------------------------

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

    # --- tables come and go ----------------------------------------------------------------------

    @each_dtype
    @pytest.mark.parametrize("layout", ["div", "mod"])
    def test_create_fills_rows_from_the_initializer(
        self, backend: Backend, raw_rows: RawRows, dtype: str, layout: str
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
            spec = make_spec(
                f"t{at}", num_rows, dim, dtype, initializer=initializer, seed=seed, layout=layout
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
        ],
        ids=str,
    )
    def test_other_placements_and_exchanges_work_or_are_refused(
        self, twins: Twins, rng: np.random.Generator, fields: dict[str, Any]
    ) -> None:
        """What a backend cannot do it says, naming the table and the value; nothing is ignored."""
        (value,) = fields.values()
        spec = make_spec("t", 20, 4, optimizer=Probe(), **fields)
        refusal = None
        try:
            twins.backend.create_table(spec)
        except ShardcoreError as error:
            refusal = str(error)
        if refusal is not None:
            assert "'t'" in refusal, "the message must name the table"
            assert repr(value) in refusal, "the message must show the value"
            assert twins.backend.specs == {}
            return
        twins.model.create_table(spec)
        bags = make_bags(rng, spec, 12)
        if spec.exchange == "partial":  # its sums have an order of their own
            batches = [TableBatch("t", (bags,)) for _ in range(2)]
            ours = looked_up(twins.backend, batches[:1])[0][0]
            expected = twins.model.lookup(batches[1:])[0][0]
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
            return
        (looked,) = twins.lookup(("t", [bags]), training=True)
        twins.apply((looked, [gradient_of(rng, spec, bags)]), step=1)

    def test_other_dtypes_are_refused(self, backend: Backend) -> None:
        """A dtype the backend has no tables of is an error that names it and the table."""
        others = [dtype for dtype in TABLE_DTYPES if dtype not in self.dtypes]
        if not others:
            pytest.skip("the backend has tables of every dtype")
        for dtype in others:
            if dtype == "bfloat16":
                pytest.importorskip("ml_dtypes")
            with pytest.raises(ShardcoreError) as caught:
                backend.create_table(make_spec("t", 4, 2, dtype))
            assert "'t'" in str(caught.value), "the message must name the table"
            assert dtype in str(caught.value), "the message must name the dtype"
            assert backend.specs == {}

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

    # --- rows are read and written ---------------------------------------------------------------

    @each_dtype
    @pytest.mark.parametrize("layout", ["div", "mod"])
    def test_gather_read_shards(self, twins: Twins, dtype: str, layout: str) -> None:
        """They return what is stored, in request order, repeated rows and empty requests too."""
        spec = make_spec("t", 23, 5, self._need(dtype), Probe(), layout=layout)
        twins.create(spec)
        twins.create(make_spec("short", 1, 1, dtype, Probe(), layout=layout))
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

    # --- lookup ----------------------------------------------------------------------------------

    @each_dtype
    @each_combiner
    @pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
    def test_lookup(
        self, twins: Twins, rng: np.random.Generator, dtype: str, combiner: Combiner, weighted: bool
    ) -> None:
        """Every combiner, over rows of every width; empty bags and divisors of 0 give zeros."""
        self._need(dtype)
        for num_rows, dim in ((1, 1), (2, 3), (37, 16), (90, 70)):
            spec = twins.create(make_spec(f"t{dim}", num_rows, dim, dtype))
            bags = make_bags(rng, spec, 60, combiner=combiner, weighted=weighted)
            twins.lookup((spec.name, [bags]))
        twins.check_storage()

    @pytest.mark.parametrize("ids_dtype", ["int32", "int64"])
    def test_lookup_takes_ids_of_both_types(
        self, twins: Twins, rng: np.random.Generator, ids_dtype: str
    ) -> None:
        """Ids are int32 or int64, in one batch even both."""
        spec = twins.create(make_spec("t", 30, 8))
        given = make_bags(rng, spec, 20, ids_dtype=ids_dtype)
        assert given.ids.dtype == ids_dtype
        twins.lookup(("t", [given, make_bags(rng, spec, 9)]))

    def test_lookup_of_nothing(self, twins: Twins) -> None:
        """No request, no bag, no id."""
        assert list(twins.backend.lookup([])) == []
        for layout in ("div", "mod"):
            spec = twins.create(make_spec(layout, 8, 3, layout=layout))
            none = np.empty(0, np.int64)
            for splits in ([0], [0, 0], [0, 0, 0, 0, 0, 0]):
                for combiner in ("sum", "mean", "sqrtn"):
                    row_splits = np.array(splits, np.int64)
                    twins.lookup((layout, [bags_of(spec, none, row_splits, None, combiner)]))
                    twins.lookup((layout, [bags_of(spec, none, row_splits, none, combiner)]))

    def test_lookup_of_several_features_and_tables(
        self, twins: Twins, rng: np.random.Generator
    ) -> None:
        """One call answers for all tables of a batch, each with features of any number of bags."""
        a = twins.create(make_spec("a", 40, 4, "float32"))
        b = twins.create(make_spec("b", 5, 9, self.dtypes[-1], layout="mod"))
        one, mean = make_bags(rng, a, 12), make_bags(rng, a, 24, combiner="mean", weighted=True)
        two = make_bags(rng, b, 12, combiner="sqrtn")
        twins.lookup(("b", [two]), ("a", [one, mean, one]))
        twins.lookup(("a", [mean]))

    @pytest.mark.parametrize("bags_per_sample", [1, 2, 5])
    def test_lookup_of_several_bags_per_sample(
        self, twins: Twins, rng: np.random.Generator, bags_per_sample: int
    ) -> None:
        """Bags of one sample belong to one host; results stay those of single bags."""
        spec = twins.create(make_spec("t", 40, 4, optimizer=Probe()))
        for samples in (0, 1, 2, 7):
            bags = make_bags(rng, spec, samples * bags_per_sample, bags_per_sample=bags_per_sample)
            (looked,) = twins.lookup(("t", [bags, make_bags(rng, spec, samples)]), training=True)
            gradients = [gradient_of(rng, spec, one) for one in looked.batch.features]
            twins.apply((looked, gradients), step=1)

    def test_lookup_sums_a_bag_in_occurrence_order(self, twins: Twins) -> None:
        """Numbers whose sum depends on the order; only the exact backend is asked."""
        if not self.exact:
            pytest.skip("the backend gives its sums in no defined order (exact = False)")
        values = _of_many_sizes(300, 5)
        spec = make_spec("t", 300, 5, initializer=as_initializer(values, (300, 5), values.dtype))
        ids = np.random.default_rng(2).permutation(300)
        assert not np.array_equal(_in_order(values[ids]), _in_order(values[ids[::-1]]))
        twins.create(spec)
        splits = np.array([0, 1, 130, 300])
        for weights in (None, np.random.default_rng(3).uniform(-1, 1, 300)):
            twins.lookup(("t", [bags_of(spec, ids, splits, weights, "sum")]))

    @each_dtype
    def test_lookup_of_quantized_rows(
        self, twins: Twins, rng: np.random.Generator, dtype: str
    ) -> None:
        """Lookups see rounded rows; what is stored, read and updated is not rounded."""
        if not twins.backend.quantizes:
            pytest.skip("the backend does not round rows for lookups (quantizes = False)")
        buckets = QuantizationConfig(5, -0.75, 0.75)
        spec = make_spec("t", 30, 6, self._need(dtype), Probe(), quantization=buckets)
        twins.create(spec)
        for step in (1, 2):
            bags = make_bags(rng, spec, 20, combiner="mean", weighted=True)
            (looked,) = twins.lookup(("t", [bags]), training=True)
            gradients = [gradient_of(rng, spec, bags)]
            mine, own = looked.updates(gradients, step)
            found, expected = twins.backend.weight_dots(mine)[0], twins.model.weight_dots(own)[0]
            assert expected is not None
            assert_agree(found, expected, "weight_dots: dots", max(1e-5, self._limit or 0.0))
            twins.apply((looked, gradients), step=step)
        twins.check_reads()

    def test_lookup_of_many_bags(self, twins: Twins, rng: np.random.Generator) -> None:
        """So many that several threads may share the work."""
        spec = twins.create(make_spec("t", 500, 33, optimizer=Probe()))
        bags = make_bags(rng, spec, 1500, combiner="mean", longest=12)
        (looked,) = twins.lookup(("t", [bags]), training=True)
        twins.apply((looked, [gradient_of(rng, spec, bags)]), step=1)

    # --- apply -----------------------------------------------------------------------------------

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
        try:
            twins.backend.create_table(spec)
        except ShardcoreError as error:
            pytest.skip(f"the backend has no such placement: {error}")
        twins.model.create_table(spec)
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
        """Adagrad tells a summed gradient from gradients applied one by one."""
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
            gradients.append(read_only(_of_many_sizes(num_bags, 3, seed=num_bags)))
        if not weighted:
            parts = [
                gradient[
                    np.repeat(np.arange(bags.num_bags), np.diff(bags.row_splits))[bags.ids == 4]
                ]
                for bags, gradient in zip(features, gradients, strict=True)
            ]
            received = np.concatenate(parts)
            assert len(received) > 2 * 4096
            assert not np.array_equal(_in_order(received), _in_blocks(received))
        (looked,) = twins.lookup(("t", features), training=True)
        twins.apply((looked, gradients), step=1)
        if not weighted:
            assert_agree(-twins.raw("t")[4], _in_blocks(received), "sum of the gradients of row 4")

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

    # --- gradients on a device -------------------------------------------------------------------

    @each_dtype
    def test_device_gradients_give_the_same_update(
        self, twins: Twins, rng: np.random.Generator, to_device: ToDevice, dtype: str
    ) -> None:
        """Of the three dtypes that devices have; with host gradients beside them, and none."""
        spec = twins.create(make_spec("t", 19, 6, self._need(dtype), Probe()))
        assert not twins.backend.takes_gradient(np.zeros((3, 6), np.float32))
        features = [make_bags(rng, spec, 9, combiner="mean", weighted=at > 1) for at in range(4)]
        kinds = [
            as_dtype(kind) for kind in ("float32", "float16") + ("bfloat16",) * _has_bfloat16()
        ]
        for step, kind in enumerate(kinds, 1):

            def given(gradient: NDArray[Any], kind: np.dtype[Any] = kind) -> Any:
                if gradient.dtype != kind:  # the one of the host
                    return gradient
                on_device = to_device(twins.backend, gradient)
                assert twins.backend.takes_gradient(on_device)
                return on_device

            host, *rest = [gradient_of(rng, spec, bags) for bags in features]
            gradients = [host.astype(working_dtype(spec.dtype)), None]
            gradients += [gradient.astype(kind) for gradient in rest[1:]]
            (looked,) = twins.lookup(("t", features), training=True)
            twins.apply_pairs([looked.device_updates(gradients, step, given, check=step != 2)])
        twins.check_reads()

    def test_weight_dots_of_device_gradients(
        self, twins: Twins, rng: np.random.Generator, to_device: ToDevice
    ) -> None:
        """NumPy arrays, as of gradients of the host."""
        spec = twins.create(make_spec("t", 25, 8, optimizer=Probe()))
        bags = make_bags(rng, spec, 14, combiner="mean", weighted=True)
        (looked,) = twins.lookup(("t", [bags, bags]), training=True)
        gradients = [gradient_of(rng, spec, bags).astype(np.float16), None]
        own, models = looked.device_updates(
            gradients, 1, lambda array: to_device(twins.backend, array), check=False
        )
        found, expected = twins.backend.weight_dots(own), twins.model.weight_dots(models)
        assert found[1] is None
        assert expected[0] is not None
        assert_agree(found[0], expected[0], "weight_dots: dots", max(1e-5, self._limit or 0.0))

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
    def test_device_gradients_that_are_not_finite_change_nothing(
        self, twins: Twins, rng: np.random.Generator, to_device: ToDevice, value: float
    ) -> None:
        """No table of that batch, nor of those after it until it is told; then all goes on."""
        specs = [twins.create(make_spec(name, 12, 3, optimizer=Probe())) for name in ("a", "b")]

        def batch(step: int, bad: float | None = None) -> list[tuple[TableUpdate, TableUpdate]]:
            bags = [make_bags(rng, spec, 7) for spec in specs]
            pairs = []
            for looked in twins.lookup(
                *((spec.name, [one, one]) for spec, one in zip(specs, bags, strict=True)),
                training=True,
            ):
                gradients = [gradient_of(rng, looked.spec, bags[0]).copy() for _ in range(2)]
                if bad is not None and looked.spec.name == "b":
                    gradients[1][4, 2:] = gradients[1][5] = bad
                pairs.append(
                    looked.device_updates(
                        gradients, step, lambda array: to_device(twins.backend, array), check=True
                    )
                )
            return pairs

        twins.apply_pairs(batch(1))
        bad, after = ([own for own, _ in batch(2, value)], [own for own, _ in batch(3)])
        error, returned = _refusal_of(
            lambda: twins.backend.apply(bad),
            lambda: twins.backend.apply(after),
            lambda: twins.backend.read("a", None, 0, 1),
        )
        message = f"gradients[1] must be finite in float32: gradients[1][4, 2] = {value}"
        assert str(error) == message
        assert error.updates == returned, "updates must count each apply that returned"
        twins.check_storage()
        twins.check_reads()
        twins.apply_pairs(batch(2))

    @pytest.mark.parametrize(
        "call",
        [
            lambda backend: backend.gather("t", None, np.array([1])),
            lambda backend: backend.scatter("t", "peaks", np.array([1]), np.ones((1, 1), "f")),
            lambda backend: backend.read("t", "velocities", 0, 3),
            lambda backend: backend.write("t", None, 0, np.ones((1, 3), np.float32)),
            lambda backend: backend.shards("t", None),
            lambda backend: backend.counters(),
            lambda backend: backend.begin_restore(),
            lambda backend: backend.close(),
        ],
        ids=["gather", "scatter", "read", "write", "shards", "counters", "begin_restore", "close"],
    )
    def test_a_refused_update_is_told_by_the_next_call(
        self, twins: Twins, to_device: ToDevice, call: Callable[[Backend], Any]
    ) -> None:
        """Once, whatever is called; what is told has done nothing, but for `close`."""
        spec = twins.create(make_spec("t", 12, 3, optimizer=Probe()))
        bags = bags_of(spec, np.arange(4), np.arange(5), None, "sum")
        (looked,) = twins.lookup(("t", [bags]), training=True)
        gradient = np.full((4, 3), np.nan, np.float32)
        update, _ = looked.device_updates(
            [gradient], 1, lambda array: to_device(twins.backend, array), check=True
        )
        error, returned = _refusal_of(
            lambda: twins.backend.apply([update]), lambda: call(twins.backend)
        )
        assert str(error) == "gradients[0] must be finite in float32: gradients[0][0, 0] = nan"
        assert error.updates == returned
        if twins.backend.specs:  # not closed
            twins.check_storage()
            twins.check_reads()
            twins.backend.counters()
            twins.backend.close()
        assert twins.backend.specs == {}

    def test_device_gradients_without_a_path_are_not_tested(
        self, twins: Twins, rng: np.random.Generator, to_device: ToDevice
    ) -> None:
        """check_gradients=False: what is not finite arrives."""
        spec = twins.create(make_spec("t", 12, 3, optimizer=Probe()))
        bags = make_bags(rng, spec, 7)
        (looked,) = twins.lookup(("t", [bags]), training=True)
        gradient = gradient_of(rng, spec, bags).copy()
        gradient[4, 1] = np.nan
        twins.apply_pairs(
            [
                looked.device_updates(
                    [gradient], 1, lambda array: to_device(twins.backend, array), check=False
                )
            ]
        )
        assert np.isnan(twins.raw("t")).any()

    # --- threads ---------------------------------------------------------------------------------

    def test_lookups_see_each_row_wholly_before_or_after_an_update(self, backend: Backend) -> None:
        """Readers look up while one thread applies: all columns of a row are of one moment."""
        rounds, num_rows, dim = 40, 48, 512
        spec = make_spec(
            "t",
            num_rows,
            dim,
            optimizer=optimizers.SGD(learning_rate=1.0),
            initializer=Constant(0.0),
        )
        backend.create_table(spec)
        assert spec.optimizer is not None
        hyper = spec.optimizer.hyper()
        every_row = bags_of(spec, np.arange(num_rows), np.arange(num_rows + 1), None, "sum")
        ones = np.ones((num_rows, dim), np.float32)
        finished = threading.Event()

        def update() -> None:
            try:
                for step in range(1, rounds + 1):
                    batch = TableBatch("t", (every_row,), training=True)
                    backend.lookup([batch])
                    backend.apply([TableUpdate(batch, (ones,), hyper, step)])
            finally:
                finished.set()

        def read() -> None:
            last = np.zeros(num_rows, np.float32)
            once_more = True
            while once_more:
                once_more = not finished.is_set()
                rows = looked_up(backend, [TableBatch("t", (every_row,))])[0][0]
                torn = (rows != rows[:, :1]).any(axis=1)
                assert not torn.any(), f"row {int(torn.argmax())} is torn between two updates"
                assert (rows[:, 0] <= last).all(), "a later lookup must not see an earlier row"
                last = rows[:, 0]

        _run_at_once([update, read, read, read])
        rows = backend.gather("t", None, np.arange(num_rows))
        arrived = np.abs(rows + rounds) <= (self._limit or 0.0) * rounds
        assert arrived.all(), "every update must have arrived"

    # --- the whole -------------------------------------------------------------------------------

    def test_under_the_engine(self, backend: Backend, raw_rows: RawRows) -> None:
        """Three steps of `ShardedEmbedding` over two tables, beside the same on the model."""
        self._check_training(backend, raw_rows, np.asarray, pipeline=False)

    @pytest.mark.parametrize("pipeline", [False, True], ids=["inline", "pipeline"])
    def test_under_the_engine_on_the_device(
        self, backend: Backend, raw_rows: RawRows, to_device: ToDevice, pipeline: bool
    ) -> None:
        """The same with gradients on the device; activations are the caller's for good."""
        self._check_training(
            backend, raw_rows, lambda gradient: to_device(backend, gradient), pipeline
        )

    def _check_training(
        self,
        backend: Backend,
        raw_rows: RawRows,
        as_given: Callable[[NDArray[Any]], Any],
        pipeline: bool,
    ) -> None:
        model = ModelBackend()
        engines = [
            self._train(backend, as_given, pipeline),
            self._train(model, np.asarray, pipeline=False),
        ]
        for outputs, expected in zip(engines[0], engines[1], strict=True):
            for name, wanted in expected.items():
                out = np.asarray(outputs[name]) if backend.device_arrays else outputs[name]
                assert_agree(out, wanted, f"activations of {name!r}: out", self._limit)
        for (table, slot), wanted in model.arrays.items():
            stored = np.array(raw_rows(backend, table, slot))
            assert_agree(stored, wanted, f"table {table!r}, slot {slot!r}: rows", self._limit)

    def _train(
        self, backend: Backend, as_given: Callable[[NDArray[Any]], Any], pipeline: bool
    ) -> list[dict[str, Any]]:
        rng = np.random.default_rng(5)
        users = TableConfig(17, 6, optimizer=Probe(), name="users")
        items = TableConfig(40, 3, combiner="sum", name="items", layout="mod")
        engine = ShardedEmbedding(
            {
                "user": FeatureConfig(users),
                "friends": FeatureConfig(users),
                "history": FeatureConfig(items, max_sequence_length=3),
            },
            optimizer=optimizers.Adagrad(learning_rate=0.5),
            backend=backend,
            pipeline=pipeline,
        )
        seen = []
        for _ in range(3):
            features = {
                "user": rng.integers(0, 17, 8),
                "friends": [list(rng.integers(0, 17, size)) for size in rng.integers(0, 4, 8)],
                "history": [list(rng.integers(0, 40, size)) for size in rng.integers(0, 6, 8)],
            }
            engine.enqueue(features)
            activations = engine.dequeue()
            gradients = {
                name: as_given(rng.uniform(-1, 1, array.shape).astype(np.float32))
                for name, array in activations.items()
            }
            engine.apply_gradients(gradients)
            seen.append(activations)
        seen.append(engine(features))
        return seen

    def test_state_machine(self, backend: Backend, raw_rows: RawRows) -> None:
        """Random sequences of calls, beside the model; Hypothesis shows the shortest that fails."""
        dtypes = []
        for dtype in self.dtypes:
            try:
                as_dtype(dtype)
            except UnavailableError:
                continue
            dtypes.append(dtype)
        run_machine(
            backend,
            raw_rows,
            self._limit,
            dtypes,
            self.max_examples,
            self.steps_per_example,
        )


def _refusal_of(*calls: Callable[[], Any]) -> tuple[UpdateRefusedError, int]:
    """Make calls until one is refused; return its error, and how many returned before."""
    for returned, call in enumerate(calls):
        try:
            call()
        except UpdateRefusedError as error:
            return error, returned
    pytest.fail("no call told of a gradient that is not finite")


def _has_bfloat16() -> bool:
    try:
        as_dtype("bfloat16")
    except UnavailableError:
        return False
    return True


def _of_many_sizes(rows: int, columns: int, seed: int = 0) -> NDArray[np.float32]:
    """Return numbers from 1e-4 to 1e4 of both signs, whose float32 sums depend on their order."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-4, 4, (rows, columns))
    return np.asarray(sizes * rng.choice([-1.0, 1.0], sizes.shape), np.float32)


def _in_order(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    total = np.zeros(rows.shape[1], np.float32)
    for row in rows:
        total = total + row
    return total


def _in_blocks(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return _in_order(
        np.array([_in_order(rows[start : start + 4096]) for start in range(0, len(rows), 4096)])
    )


def _run_at_once(works: Sequence[Callable[[], None]]) -> None:
    """Run each in a thread of its own; raise the first error, or if one does not finish."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    end = time.monotonic() + PATIENCE_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), (
        f"calls from several threads did not return within {PATIENCE_SECONDS:g} seconds"
    )

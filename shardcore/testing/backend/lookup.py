"""Bags are looked up."""

from __future__ import annotations

import numpy as np
import pytest

from shardcore.backend.messages import TableSpec
from shardcore.backend.quantization import QuantizationConfig
from shardcore.initializers.filling import as_initializer
from shardcore.testing.agreement import assert_agree
from shardcore.testing.backend.fixtures import BackendFixtures, Combiner, each_combiner, each_dtype
from shardcore.testing.backend.sums import in_order, of_many_sizes
from shardcore.testing.requests import Probe, bags_of, gradient_of, make_bags, make_spec
from shardcore.testing.twins import Twins


class LookupTests(BackendFixtures):
    """`lookup`, with rounded rows too."""

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
        b = twins.create(make_spec("b", 5, 9, self._dtypes[-1], layout="mod"))
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
        values = of_many_sizes(300, 5)
        spec = make_spec("t", 300, 5, initializer=as_initializer(values, (300, 5), values.dtype))
        ids = np.random.default_rng(2).permutation(300)
        assert not np.array_equal(in_order(values[ids]), in_order(values[ids[::-1]]))
        twins.create(spec)
        splits = np.array([0, 1, 130, 300])
        for weights in (None, np.random.default_rng(3).uniform(-1, 1, 300)):
            twins.lookup(("t", [bags_of(spec, ids, splits, weights, "sum")]))

    @each_dtype
    def test_lookup_of_rows_of_a_greatest_norm(
        self, twins: Twins, rng: np.random.Generator, dtype: str
    ) -> None:
        """Lookups see rows scaled down; what is stored, read and updated is not scaled."""
        if not twins.backend.capabilities.max_norm:
            pytest.skip("the backend does not scale rows for lookups (max_norm=False)")
        spec = make_spec("t", 30, 6, self._need(dtype), Probe(), max_norm=1.25)
        twins.create(spec)
        twins.check_storage()
        self._train_twice(twins, rng, spec)
        twins.check_storage()

    def _train_twice(self, twins: Twins, rng: np.random.Generator, spec: TableSpec) -> None:
        """Compare lookups, gradients of weights and updates of rows that are seen changed."""
        for step in (1, 2):
            bags = make_bags(rng, spec, 20, combiner="mean", weighted=True)
            (looked,) = twins.lookup(("t", [bags]), training=True)
            gradients = [gradient_of(rng, spec, bags)]
            mine, own = looked.updates(gradients, step)
            found, expected = twins.backend.weight_dots(mine)[0], twins.model.weight_dots(own)[0]
            assert expected is not None
            assert_agree(found, expected, "weight_dots: dots", max(1e-5, self._limit or 0.0))
            twins.apply((looked, gradients), step=step)

    @each_dtype
    def test_lookup_of_quantized_rows(
        self, twins: Twins, rng: np.random.Generator, dtype: str
    ) -> None:
        """Lookups see rounded rows; what is stored, read and updated is not rounded."""
        if not twins.backend.capabilities.quantization:
            pytest.skip("the backend does not round rows for lookups (quantization=False)")
        buckets = QuantizationConfig(5, -0.75, 0.75)
        spec = make_spec("t", 30, 6, self._need(dtype), Probe(), quantization=buckets)
        twins.create(spec)
        self._train_twice(twins, rng, spec)
        twins.check_reads()

    def test_lookup_into_an_array(self, twins: Twins, rng: np.random.Generator) -> None:
        """One feature's activations go where the caller says, rounded where lookups round."""
        plain = twins.create(make_spec("t", 30, 6))
        twins.lookup_into("t", make_bags(rng, plain, 20, combiner="mean", weighted=True))
        twins.lookup_into("t", make_bags(rng, plain, 0))
        if twins.backend.capabilities.quantization:
            buckets = QuantizationConfig(5, -0.75, 0.75)
            rounded = twins.create(make_spec("rounded", 30, 6, quantization=buckets))
            twins.lookup_into("rounded", make_bags(rng, rounded, 20))

    @each_dtype
    def test_lookup_of_bags_as_they_are_given(
        self, twins: Twins, rng: np.random.Generator, dtype: str
    ) -> None:
        """A backend that combines them unchecked gives what any other gives, or refuses."""
        plain = twins.create(make_spec("t", 30, 6, self._need(dtype)))
        for combiner in ("sum", "mean", "sqrtn"):
            for bags in (20, 1500):
                for weighted in (False, True):
                    given = make_bags(rng, plain, bags, weighted=weighted)
                    twins.lookup_given("t", given, combiner)
        if twins.backend.capabilities.quantization:
            buckets = QuantizationConfig(5, -0.75, 0.75)
            rounded = twins.create(make_spec("rounded", 30, 6, quantization=buckets))
            twins.lookup_given("rounded", make_bags(rng, rounded, 20), "sum")

    def test_lookup_of_many_bags(self, twins: Twins, rng: np.random.Generator) -> None:
        """So many that several threads may share the work."""
        spec = twins.create(make_spec("t", 500, 33, optimizer=Probe()))
        bags = make_bags(rng, spec, 1500, combiner="mean", longest=12)
        (looked,) = twins.lookup(("t", [bags]), training=True)
        twins.apply((looked, [gradient_of(rng, spec, bags)]), step=1)

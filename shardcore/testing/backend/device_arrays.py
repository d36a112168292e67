"""Gradients that lie on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardcore.backend.messages import TableUpdate
from shardcore.dtypes import as_dtype, working_dtype
from shardcore.errors import UnavailableError
from shardcore.testing.agreement import assert_agree
from shardcore.testing.backend.fixtures import BackendFixtures, each_dtype
from shardcore.testing.requests import Probe, gradient_of, make_bags, make_spec
from shardcore.testing.twins import ToDevice, Twins


class DeviceArrayTests(BackendFixtures):
    """Skipped by a backend without arrays of its own."""

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
        """No table of that batch; those after it stand, and the step of the first is reported."""
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
        assert twins.backend.check_updates(wait=True) is None
        bad, worse = ([own for own, _ in batch(step, value)] for step in (2, 4))
        reports = []
        for refused, step in ((bad, 3), (worse, 5)):
            twins.backend.apply(refused)
            reports.append(twins.backend.check_updates(wait=False))
            twins.check_storage()
            twins.apply_pairs(batch(step))
            reports.append(twins.backend.check_updates(wait=False))
        reports.append(twins.backend.check_updates(wait=True))
        told = [report for report in reports if report is not None]
        assert told, "a gradient that is not finite must be reported"
        report = told[0]
        assert report.table == "b"
        assert report.origin is bad[1].origin, "the report must give the update's origin back"
        assert (report.feature, report.bag, report.column) == (1, 4, 2)
        np.testing.assert_equal(report.value, value)
        assert report.step == 2, "the report must name the step of the update"
        assert twins.backend.check_updates(wait=True) is None, "a report comes once"
        assert sum(one.updates for one in told) == 2, (
            "updates must count each apply that did nothing, and no other"
        )
        twins.check_storage()
        twins.check_reads()
        twins.apply_pairs(batch(6))

    def test_a_report_may_come_after_its_table(
        self, twins: Twins, rng: np.random.Generator, to_device: ToDevice
    ) -> None:
        """The last update is reported even if its table was dropped since."""
        spec = twins.create(make_spec("t", 12, 3, optimizer=Probe()))
        bags = make_bags(rng, spec, 4)
        (looked,) = twins.lookup(("t", [bags]), training=True)
        gradient = np.full((4, 3), np.nan, np.float32)
        update, _ = looked.device_updates(
            [gradient], 1, lambda array: to_device(twins.backend, array), check=True
        )
        twins.backend.apply([update])
        twins.drop("t")
        report = twins.backend.check_updates(wait=True)
        assert report is not None
        assert (report.feature, report.bag, report.column) == (0, 0, 0)
        assert report.updates == 1

    def test_device_gradients_are_not_tested_unless_asked(
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


def _has_bfloat16() -> bool:
    try:
        as_dtype("bfloat16")
    except UnavailableError:
        return False
    return True

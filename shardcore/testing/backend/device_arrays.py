"""Gradients that lie on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardcore.backend.base import Backend
from shardcore.backend.messages import TableUpdate
from shardcore.dtypes import as_dtype, working_dtype
from shardcore.errors import UnavailableError, UpdateRefusedError
from shardcore.testing.agreement import assert_agree
from shardcore.testing.backend.fixtures import BackendFixtures, each_dtype
from shardcore.testing.requests import Probe, bags_of, gradient_of, make_bags, make_spec
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

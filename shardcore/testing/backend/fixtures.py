"""Fixtures, settings and parameters that the chapters of the battery share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import pytest

from shardcore.backend.base import Backend
from shardcore.backend.capabilities import LAYOUTS
from shardcore.dtypes import TABLE_DTYPES, as_dtype
from shardcore.errors import UnavailableError
from shardcore.testing.requests import LayoutKind, layout_over
from shardcore.testing.twins import RawRows, ToDevice, Twins

each_dtype = pytest.mark.parametrize("dtype", TABLE_DTYPES)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
each_combiner = pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])

Combiner = Literal["sum", "mean", "sqrtn"]
SpecLayout = Literal["div", "mod"] | Sequence[int]


class BackendFixtures:
    """The fixtures and settings of `BackendConformance`, which every chapter builds on."""

    exact: ClassVar[bool] = True
    tolerance: ClassVar[float] = 1e-5
    max_examples: ClassVar[int] = 20
    steps_per_example: ClassVar[int] = 30

    _dtypes: Sequence[str] = ()

    @pytest.fixture(autouse=True)
    def _know_dtypes(self, backend: Backend) -> None:
        """Take over which dtypes the backend has."""
        self._dtypes = backend.capabilities.dtypes

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
        if not backend.capabilities.device_arrays:
            pytest.skip("the backend has no arrays of its own (device_arrays=False)")
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

    def _layout(self, backend: Backend, layout: LayoutKind, num_rows: int) -> SpecLayout:
        """Return a layout for a spec over the backend's hosts, or skip the test."""
        if layout == "ranges" and layout not in backend.capabilities.layouts:
            pytest.skip("the backend places no ranges of given sizes (layouts)")
        return layout_over(backend.num_hosts, layout, num_rows)

    def _need(self, dtype: str) -> str:
        """Return a dtype of the battery, or skip the test."""
        if dtype not in self._dtypes:
            pytest.skip(f"the backend has no tables of {dtype}")
        try:
            as_dtype(dtype)
        except UnavailableError as error:
            pytest.skip(str(error))
        return dtype

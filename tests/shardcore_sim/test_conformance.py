"""The battery of every backend, on a simulated cluster that places tables in each of its ways."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from shardcore_sim.backend import SimBackend

from shardcore.testing import BackendConformance
from shardcore.testing.requests import make_spec


class Placing(SimBackend):
    """Places every table that does not say otherwise in one way."""

    def __init__(self, hosts, **fields):
        super().__init__(hosts)
        self._fields = fields
        if fields == {"placement": "column", "exchange": "partial"}:  # no host has whole rows
            self.capabilities = dataclasses.replace(self.capabilities, max_norm=False)

    def create_tables(self, specs):
        """Keep the specs that were given, which the battery compares."""
        super().create_tables([self._placed(spec) for spec in specs])
        self.specs |= {spec.name: spec for spec in specs}

    def _placed(self, spec):
        usual = (spec.placement, spec.exchange) == ("row", "exact")
        return dataclasses.replace(spec, **self._fields) if usual else spec


def stored(store, slot):
    return store.rows if slot is None else store.slots[slot]


def read(backend, table, slot):
    placement = backend._tables[table]
    spec = placement.spec
    parts = [stored(store, slot) for store in placement.stores]
    if spec.placement == "replicated":
        for part in parts[1:]:
            assert part.tobytes() == parts[0].tobytes()
        return parts[0]
    slots = spec.optimizer.slots if spec.optimizer is not None else ()
    if spec.placement == "column" and not any((s.name, s.kind) == (slot, "row") for s in slots):
        return np.hstack(parts)
    rows = np.empty((spec.num_rows, parts[0].shape[1]), parts[0].dtype)
    for host, part in enumerate(parts):
        rows[placement.layout.global_rows(host)] = part
    return rows


class OnSim(BackendConformance):
    max_examples = 5
    fields = {}

    @pytest.fixture
    def backend(self):
        return Placing(3, **self.fields)

    @pytest.fixture
    def raw_rows(self):
        return read


class TestRows(OnSim):
    @pytest.fixture(params=[1, 3], ids=["1 host", "3 hosts"])
    def backend(self, request):
        return SimBackend(request.param)


class TestWholeTables(OnSim):
    fields = {"placement": "table"}

    def test_layout_has_the_row_counts_of_the_table(self, twins):
        """A table that is on one host is cut by no counts."""
        twins.create(make_spec("t", 23, 5, layout=(3, 20, 0)))
        assert twins.backend.layout("t").shard_sizes.tolist() == [23, 0, 0]


class TestColumns(OnSim):
    fields = {"placement": "column"}


class TestCopies(OnSim):
    fields = {"placement": "replicated"}


class TestPartialSums(OnSim):
    fields = {"exchange": "partial"}
    exact = False


class TestPartialSumsOfColumns(OnSim):
    fields = {"placement": "column", "exchange": "partial"}

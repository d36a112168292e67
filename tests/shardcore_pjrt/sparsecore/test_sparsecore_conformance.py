"""The conformance suite on emulated SparseCores, with an optimizer that they have.

The suite's own optimizer has slots of a row and of float16, which SparseCores do not; Adam, whose
slots are two, takes its place.
"""

from __future__ import annotations

import sys

import jax
import numpy as np
import pytest
from shardcore_pjrt.sparsecore.backend import SparseCoreBackend

import shardcore as sc
from shardcore.testing import BackendConformance

pytestmark = pytest.mark.usefixtures("emulated")


def stored_rows(backend, table, slot):
    """Return what the devices hold, put together on the host without any of the backend's reads."""
    stack = backend._stacks[table]
    geometry, at = stack.geometry, stack.position[table]
    layout = geometry.layouts[at]
    held = np.asarray(stack.arrays[slot]).reshape(
        geometry.devices, geometry.cores, geometry.rows_per_core, geometry.columns
    )
    rows = np.empty((layout.num_rows, stack.dim_of(at)), np.float32)
    for device in range(geometry.devices):
        for local, row in enumerate(layout.global_rows(device).tolist()):
            of_core = geometry.first_rows[at] + local // geometry.cores
            rows[row] = held[device, local % geometry.cores, of_core, : rows.shape[1]]
    return rows


def adam(learning_rate=0.25, decay=0.5):
    return sc.optimizers.Adam(learning_rate, decay, sum_inside_sqrt=False, epsilon=0.5)


@pytest.fixture(autouse=True)
def probe(monkeypatch):
    for name, module in list(sys.modules.items()):
        if name.startswith("shardcore.testing") and hasattr(module, "Probe"):
            monkeypatch.setattr(module, "Probe", adam)


class TestFourCores(BackendConformance):
    exact = False
    max_examples = 3  # nearly every call of a run is one more program to compile
    steps_per_example = 10

    # These name slots of the suite's own optimizer:
    test_create_fills_slots = None
    test_drop_forgets_that_table_only = None
    test_gather_read_shards = None
    test_scatter_and_write_change_those_rows_only = None
    test_tables_made_in_one_call_are_tables_of_their_own = None
    test_what_comes_out_and_goes_in_is_copied = None
    # This one needs an optimizer that moves rows by gradients of 0, and this one that fails:
    test_apply_leaves_rows_alone_that_no_gradient_names = None
    test_apply_that_fails_changes_nothing = None

    @pytest.fixture
    def backend(self):
        backend = SparseCoreBackend("cpu", 2, 2)
        yield backend
        backend.close()

    @pytest.fixture
    def raw_rows(self):
        return stored_rows

    @pytest.fixture
    def to_device(self):
        return lambda backend, array: jax.device_put(array, backend.mesh.devices.flat[0])

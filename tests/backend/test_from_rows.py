"""What the base class makes of a backend that only gathers and scatters rows."""

from __future__ import annotations

import numpy as np
import pytest

from shardcore.backend import TableBatch, TableSpec, TableUpdate
from shardcore.backend.from_rows import gradients_on_host

SPECS = {"t": TableSpec("t", 4, 2, np.dtype("float32"), np.zeros, 0)}


def update_of(*gradients, check):
    return TableUpdate(TableBatch("t", ()), gradients, (), 1, check, origin="feature f")


def test_a_value_too_great_for_the_table_is_reported_as_given():
    gradients = (None, np.array([[1.0, 2.0], [3.0, 1e39]]))
    ready, found = gradients_on_host([update_of(*gradients, check=True)], SPECS)
    assert not ready
    assert (found.table, found.origin, found.feature) == ("t", "feature f", 1)
    assert (found.bag, found.column, found.value) == (1, 1, 1e39)


@pytest.mark.filterwarnings("error")
def test_a_value_too_great_for_the_table_becomes_infinite_if_not_tested():
    (ready,), found = gradients_on_host([update_of(np.array([[1.0, 1e39]]), check=False)], SPECS)
    assert found is None
    (gradient,) = ready.gradients
    assert gradient.dtype == np.float32
    assert gradient.tolist() == [[1.0, np.inf]]

"""Gradients that are not finite: nothing of that batch, and a report of its first one."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from jax.sharding import Mesh
from shardcore_pjrt.mesh.placing import over_devices
from shardcore_pjrt.programs.activations import Filling
from shardcore_pjrt.programs.compiled import Programs
from shardcore_pjrt.programs.refusals import Refusals

from shardcore.backend import TableBatch, TableUpdate


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices("cpu")[:2]), ("x",))


def update_of(mesh, *gradients, table="t", check=True, step=1):
    placed = tuple(jax.device_put(each, over_devices(mesh)) for each in gradients)
    return TableUpdate(TableBatch(table, ()), placed, (), step, check, origin=f"of {table}")


def test_the_first_refused_batch_is_reported_with_its_place(mesh):
    refusals = Refusals(mesh, Programs())
    good, spoilt = np.ones((4, 3), np.float32), np.ones((6, 3), np.float32)
    spoilt[5, 1], spoilt[3, 2] = np.nan, np.inf
    first = [update_of(mesh, good)]
    bad = [update_of(mesh, good, step=2), update_of(mesh, good, spoilt, table="u", step=2)]
    worse = [update_of(mesh, spoilt, step=3)]
    go = [bool(refusals.test(updates)) for updates in (first, bad, worse, first)]
    assert go == [True, False, False, True]
    report = refusals.report(wait=True)
    assert (report.table, report.origin) == ("u", "of u")
    assert (report.feature, report.bag, report.column, report.value) == (1, 3, 2, np.inf)
    assert (report.step, report.updates) == (2, 2)
    assert refusals.report(wait=True) is None
    assert bool(refusals.test(first))


def test_unchecked_gradients_and_those_beside_them(mesh):
    refusals = Refusals(mesh, Programs())
    nan = np.full((2, 3), np.nan, np.float32)
    assert bool(refusals.test([update_of(mesh, nan, check=False)]))
    beside = [update_of(mesh, nan, check=False), update_of(mesh, nan, table="u")]
    assert not bool(refusals.test(beside))
    assert refusals.report(wait=True).table == "u"


class Unfinished:
    """A value on a device whose program runs until the host asks for the value itself."""

    def __init__(self):
        self.asked = 0

    def is_ready(self):
        return False

    def __bool__(self):
        self.asked += 1
        return True


def test_a_report_waits_only_for_batches_that_are_long_past(mesh, monkeypatch):
    monkeypatch.setattr("shardcore_pjrt.programs.refusals.fetched", lambda value: value)
    values = [Unfinished() for _ in range(67)]
    tests = iter(values)
    programs = Programs()
    monkeypatch.setattr(programs, "get", lambda *_: lambda *_: (next(tests), [0], [0.0]))
    refusals = Refusals(mesh, programs)
    for _ in values:
        refusals.test([update_of(mesh, np.ones((4, 3), np.float32))])
    assert refusals.report(wait=False) is None
    assert [value.asked for value in values] == [1] * 3 + [0] * 64
    assert refusals.report(wait=True) is None
    assert [value.asked for value in values] == [1] * 67


def test_what_fills_a_gradient_up_moves_no_place(mesh):
    refusals = Refusals(mesh, Programs())
    spoilt = np.zeros((8, 3), np.float32)  # two parts with room for four, of three bags each
    spoilt[5, 2] = np.inf
    update = update_of(mesh, spoilt)
    assert not bool(refusals.test([update], [[Filling(2, 4, 3)]]))
    report = refusals.report(wait=True)
    assert (report.bag, report.column) == (4, 2)


def test_a_value_is_shown_as_given_beside_gradients_of_other_dtypes(mesh):
    refusals = Refusals(mesh, Programs())
    half, single = np.ones((2, 2), np.float16), np.ones((2, 2), np.float32)
    half[1, 0] = -np.inf
    single[0, 1] = np.nan
    refusals.test([update_of(mesh, np.ones((2, 2), np.float32), half, single)])
    report = refusals.report(wait=True)
    assert (report.feature, report.bag, report.column, report.value) == (1, 1, 0, -np.inf)

"""The backends without a fault that faulty ones are made from, and the suites they are given to."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from shardcore.backend import Capabilities, FeatureBags
from shardcore.backend.from_rows import gradients_on_host
from shardcore.testing import BackendConformance, ModelBackend


class Suite(BackendConformance):
    Faulty: type = ModelBackend

    @pytest.fixture
    def backend(self):
        return self.Faulty()

    @pytest.fixture
    def raw_rows(self):
        return lambda backend, table, slot: backend.arrays[table, slot]


def reversed_bags(bags):
    """The same bags, each from its last id to its first."""
    order = np.concatenate(
        [np.arange(lo, hi)[::-1] for lo, hi in itertools.pairwise(bags.row_splits)]
        or [np.empty(0, np.int64)]
    ).astype(np.int64)
    weights = None if bags.weights is None else bags.weights[order]
    return FeatureBags(bags.ids[order], bags.row_splits, weights, bags.divisors)


class Inexact(ModelBackend):
    """Its bags and gradients are off by a few units in the last place."""

    def _combined(self, table, bags):
        out = super()._combined(table, reversed_bags(bags))
        return (out * (1 + 3e-7)).astype(out.dtype)

    def _received(self, update):
        return {
            row: [(grad * (1 - 3e-7)).astype(grad.dtype) for grad in gradients]
            for row, gradients in super()._received(update).items()
        }


class DeviceArray:
    """An array that only its device computes with."""

    def __init__(self, array):
        self.array = np.asarray(array)
        self.shape, self.dtype = self.array.shape, self.array.dtype

    def reshape(self, *shape):
        return DeviceArray(self.array.reshape(*shape))

    def __array__(self, dtype=None, copy=None):
        return np.array(self.array, dtype)


class Device(ModelBackend):
    """Tables on a device, without float64; reports what it refused when it is asked."""

    capabilities = Capabilities(
        ("float32", "float16", "bfloat16"),
        device_arrays=True,
        slot_dtypes=("float32", "float16", "bfloat16"),
    )

    def __init__(self):
        super().__init__()
        self.report = None

    def check_updates(self, wait):
        report, self.report = self.report, None
        return report

    def lookup(self, batches):
        return [[DeviceArray(one) for one in found] for found in super().lookup(batches)]

    def takes_gradient(self, gradient):
        return isinstance(gradient, DeviceArray)

    def on_host(self, updates):
        return gradients_on_host(updates, self.specs)

    def apply(self, updates):
        ready, found = self.on_host(updates)
        if found is None:
            super().apply(ready)
        else:
            report = self.report or dataclasses.replace(found, step=updates[0].step)
            self.report = dataclasses.replace(report, updates=report.updates + 1)

    def weight_dots(self, update):
        (ready,), _ = self.on_host([dataclasses.replace(update, check=False)])
        return super().weight_dots(ready)


class InexactDevice(Inexact, Device):
    """Inexact, and with arrays of its own."""


class DeviceSuite(Suite):
    Faulty = Device

    @pytest.fixture
    def to_device(self):
        return lambda backend, array: DeviceArray(array.copy())

"""Backends whose tables are on a device, with a fault in what only those have."""

from __future__ import annotations

import dataclasses

import numpy as np
from broken.backends.models import Device, DeviceArray, DeviceSuite, InexactDevice, Suite
from broken.found_by import found_by


class TestOnADevice(DeviceSuite):
    """Nothing is wrong with it."""


class TestInexactOnADeviceAndSaysSo(DeviceSuite):
    Faulty = InexactDevice
    exact = False


@found_by(
    "test_weight_dots_of_device_gradients",
    "TestMakesNoDeviceArrays must override the fixture 'to_device': return a callable "
    "(backend, array) -> an array that the backend takes for a gradient",
)
class TestMakesNoDeviceArrays(Suite):
    Faulty = Device


@found_by(
    "test_device_gradients_give_the_same_update", "stored rows of table 't': rows[2, 0] is -44"
)
class TestTakesHalvesForTheirBits(DeviceSuite):
    class Faulty(Device):
        def on_host(self, updates):
            return super().on_host([self.misread(update) for update in updates])

        def misread(self, update):
            gradients = tuple(
                DeviceArray(one.array.view(np.uint16))
                if isinstance(one, DeviceArray) and one.dtype.itemsize == 2
                else one
                for one in update.gradients
            )
            return dataclasses.replace(update, gradients=gradients)


@found_by(
    "test_weight_dots_of_device_gradients",
    "weight_dots: dots must be a NumPy array, got DeviceArray",
)
class TestDotsOnTheDevice(DeviceSuite):
    class Faulty(Device):
        def weight_dots(self, update):
            return [
                None if one is None else DeviceArray(one) for one in super().weight_dots(update)
            ]


@found_by(
    "test_device_gradients_that_are_not_finite_change_nothing",
    "stored rows of table 'a': rows[0, 0] is",
)
class TestRefusesTableByTable(DeviceSuite):
    class Faulty(Device):
        def apply(self, updates):
            for update in updates:
                super().apply([update])


@found_by("test_a_report_may_come_after_its_table", "assert 0 == 1")
class TestCountsNoUpdates(DeviceSuite):
    class Faulty(Device):
        def check_updates(self, wait):
            report = super().check_updates(wait)
            return None if report is None else dataclasses.replace(report, updates=0)


@found_by(
    "test_device_gradients_that_are_not_finite_change_nothing",
    "stored rows of table 'a': rows[0, 0] is",
)
class TestRefusesAllThatFollows(DeviceSuite):
    class Faulty(Device):
        def apply(self, updates):
            if self.report is None:
                super().apply(updates)
            else:
                self.report = dataclasses.replace(self.report, updates=self.report.updates + 1)

        def check_updates(self, wait):
            return super().check_updates(wait) if wait else None


@found_by(
    "test_device_gradients_that_are_not_finite_change_nothing",
    "the report must name the step of the update",
)
class TestNamesNoStep(DeviceSuite):
    class Faulty(Device):
        def check_updates(self, wait):
            report = super().check_updates(wait)
            return None if report is None else dataclasses.replace(report, step=0)


@found_by("test_device_gradients_that_are_not_finite_change_nothing", "(1, 5, 0)")
class TestReportsTheLastValue(DeviceSuite):
    class Faulty(Device):
        def check_updates(self, wait):
            report = super().check_updates(wait)
            if report is None:
                return None
            return dataclasses.replace(report, bag=report.bag + 1, column=0)


@found_by("test_device_gradients_that_are_not_finite_change_nothing", "a report comes once")
class TestReportsAgain(DeviceSuite):
    class Faulty(Device):
        def check_updates(self, wait):
            return self.report


@found_by("test_a_report_may_come_after_its_table", "assert None is not None")
class TestForgetsReportsOfDroppedTables(DeviceSuite):
    class Faulty(Device):
        def remove_table(self, table):
            super().remove_table(table)
            self.report = None


@found_by(
    "test_device_gradients_are_not_tested_unless_asked",
    "stored rows of table 't': rows[0, 0] is -0.390",
)
class TestTestsWhatItIsNotAskedTo(DeviceSuite):
    class Faulty(Device):
        def on_host(self, updates):
            return super().on_host([dataclasses.replace(one, check=True) for one in updates])


@found_by(
    "test_under_the_engine_on_the_device", "activations of 'user': out[0, 0] is 0.0, expected"
)
class TestGivesActivationsThatChange(DeviceSuite):
    class Faulty(Device):
        def lookup(self, batches):
            for arrays in getattr(self, "last", []):
                for one in arrays:
                    one.array[...] = 0
            self.last = super().lookup(batches)
            return self.last

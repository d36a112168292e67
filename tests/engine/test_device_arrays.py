"""Activations and gradients that stay on a device, and gradients that are refused there."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading

import ml_dtypes
import numpy as np
import pytest
from shardcore_cpu.backend import CpuBackend

import shardcore as sc
from shardcore.backend import Capabilities
from shardcore.backend.from_rows import gradients_on_host
from shardcore.checkpoint.state import SavedTensor
from shardcore.errors import (
    NotCommittedError,
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
    UpdateRefusedError,
)
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.testing import ModelBackend

ROWS = sc.initializers.RowId()
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
both = pytest.mark.parametrize("pipeline", [False, True], ids=["inline", "pipeline"])


class DeviceArray:
    """An array that only its device can compute with; whoever reads it is counted."""

    reads = 0

    def __init__(self, array):
        self._array = np.array(array)
        self.shape, self.dtype = self._array.shape, self._array.dtype

    def reshape(self, *shape):
        return DeviceArray(self._array.reshape(*shape))

    def __array__(self, dtype=None, copy=None):
        DeviceArray.reads += 1
        return np.array(self._array, dtype)


class Deferring(CpuBackend):
    """Tests gradients when it applies them, and reports later.

    Without waiting it does so once `patience` updates have done nothing.
    """

    name = "deferring"
    capabilities = Capabilities(device_arrays=True)

    def __init__(self, patience=1):
        super().__init__()
        self.patience = patience
        self.report = None
        self.reported = []
        self.seen = []
        self.closed = False
        self.lock = threading.Lock()

    def check_updates(self, wait):
        with self.lock:
            report = self.report
            if report is None or (not wait and report.updates < self.patience):
                return None
            self.report = None
            self.reported.append(report.updates)
            return report

    def takes_gradient(self, gradient):
        return isinstance(gradient, DeviceArray)

    def lookup(self, batches):
        return [[DeviceArray(one) for one in found] for found in super().lookup(batches)]

    def apply(self, updates):
        self.seen += [gradient for update in updates for gradient in update.gradients]
        ready, found = gradients_on_host(updates, self.specs)
        if found is not None:
            with self.lock:
                report = self.report or dataclasses.replace(found, step=updates[0].step)
                self.report = dataclasses.replace(report, updates=report.updates + 1)
            return
        super().apply(ready)

    def weight_dots(self, update):
        (ready,), _ = gradients_on_host([dataclasses.replace(update, check=False)], self.specs)
        return super().weight_dots(ready)

    def close(self):
        super().close()
        self.closed = True


def make_engine(backend=None, pipeline=False, optimizer=None, **options):
    user = TableConfig(6, 2, initializer=ROWS, combiner="sum", name="user")
    item = TableConfig(5, 1, initializer=ROWS, combiner="sum", name="item")
    config = {
        "user": FeatureConfig(user),
        "friends": FeatureConfig(user, max_sequence_length=2),
        "item": FeatureConfig(item),
    }
    e = sc.ShardedEmbedding(
        config,
        optimizer or sc.optimizers.SGD(1.0),
        backend=backend or Deferring(),
        pipeline=pipeline,
        **options,
    )
    e.build()
    return e


FEATURES = {"user": [[1], [2, 3]], "friends": [[4, 5], [5]], "item": [[0], [1]]}
SHAPES = {"user": (2, 2), "friends": (2, 2, 2), "item": (2, 1)}


def ones(dtype=np.float32, kind=DeviceArray, **changes):
    gradients = {name: np.ones(shape, dtype) for name, shape in SHAPES.items()}
    for name, (at, value) in changes.items():
        gradients[name][at] = value
    return {name: kind(gradient) for name, gradient in gradients.items()}


def train(e, gradients, weights=None, **options):
    e.enqueue(FEATURES, weights)
    activations = e.dequeue()
    found = e.apply_gradients(gradients, **options)
    return activations, found


def rows_of(e):
    return [np.asarray(table).tolist() for table in e.tables.values()]


# --- there and back ----------------------------------------------------------------------------


@both
def test_activations_stay_on_the_device(pipeline):
    with make_engine(pipeline=pipeline) as e, make_engine("cpu") as on_host:
        before = DeviceArray.reads
        e.enqueue(FEATURES)
        found = [e.dequeue(), e(FEATURES)]
        assert DeviceArray.reads == before
        expected = on_host(FEATURES)
        for activations in found:
            for name, shape in SHAPES.items():
                assert type(activations[name]) is DeviceArray
                assert activations[name].shape == shape
                np.testing.assert_array_equal(np.asarray(activations[name]), expected[name])


@both
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_on_the_device_are_not_read_and_keep_their_dtype(pipeline, check, dtype):
    backend = Deferring()
    with (
        make_engine(backend, pipeline, check_gradients=check) as e,
        make_engine("cpu") as on_host,
    ):
        e.enqueue(FEATURES)
        e.dequeue()
        gradients = ones(dtype, user=((0, 1), 0.3))
        before = DeviceArray.reads
        backend.apply = backend.seen.extend  # looks at nothing
        e.apply_gradients(gradients)
        e.tables  # noqa: B018 - waits
        assert DeviceArray.reads == before
        del backend.apply
        for update in backend.seen:
            assert update.check is check
            features = 2 if update.batch.table == "user" else 1
            assert [one.dtype for one in update.gradients] == [dtype] * features
        assert backend.seen[0].gradients[0] is gradients["user"]
        assert backend.seen[0].gradients[1].shape == (4, 2)
        backend.seen.clear()
        train(e, gradients)
        train(on_host, ones(dtype, np.asarray, user=((0, 1), 0.3)))
        assert rows_of(e) == rows_of(on_host)


@both
def test_host_gradients_beside_those_on_the_device(pipeline):
    backend = Deferring()
    with make_engine(backend, pipeline) as e, make_engine("cpu") as on_host:
        mixed = {**ones(), "friends": np.ones((2, 2, 2), np.int8), "item": None}
        train(e, mixed)
        train(on_host, {**ones(kind=np.asarray), "item": None})
        assert rows_of(e) == rows_of(on_host)
        assert [type(one) for one in backend.seen] == [DeviceArray, np.ndarray]
        with pytest.raises(
            ShardcoreValueError, match=re.escape("gradients['friends'][0, 1, 0] = inf")
        ):  # those of the host are told of at once, and the batch still waits
            train(e, {**mixed, "friends": ones(kind=np.asarray, friends=((0, 1, 0), np.inf))["friends"]})  # fmt: skip  # noqa: E501
        e.apply_gradients(mixed)
        assert e.step == 2


def test_a_backend_that_takes_none_reads_them():
    with make_engine("cpu") as e:
        train(e, ones(np.int16))
        assert e.tables["user"][1].tolist() == [0, 0]


def test_gradients_of_weights_of_device_gradients():
    weights = {"user": np.array([1.0, 2.0, 0.5]), "friends": None, "item": None}
    gradients = {"user": [[1, 2], [3, 0]]}
    with make_engine() as e, make_engine("cpu") as on_host:
        given = ones(np.float16)
        given["user"] = DeviceArray(np.array(gradients["user"], np.float16))
        _, found = train(e, given, weights, weight_gradients=True)
        host = {**ones(kind=np.asarray), **gradients}
        _, expected = train(on_host, host, weights, weight_gradients=True)
        np.testing.assert_array_equal(found["user"], expected["user"])
        assert found["item"] is None


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"user": np.ones((2, 2), bool)}, ShardcoreTypeError,
         "gradients['user'] must be real numbers, got dtype bool"),
        ({"user": np.ones((2, 2), complex)}, ShardcoreTypeError,
         "gradients['user'] must be real numbers, got dtype complex128"),
        ({"user": np.ones((2, 2), np.int32)}, ShardcoreTypeError,
         "gradients['user'] must be float16, bfloat16, float32 or float64 where it lives on a "
         "device, got dtype int32"),
        ({"friends": np.ones((4, 2))}, ShardcoreValueError,
         "gradients['friends'] must have the shape of the activations, (2, 2, 2), got (4, 2)"),
    ],
)  # fmt: skip
def test_shape_and_dtype_are_checked_at_once(changes, error, message):
    with make_engine() as e:
        e.enqueue(FEATURES)
        e.dequeue()
        given = {**ones(), **{name: DeviceArray(array) for name, array in changes.items()}}
        with pytest.raises(error) as info:
            e.apply_gradients(given)
        assert str(info.value) == message
        e.apply_gradients(ones())
        assert e.step == 1


def test_a_gradient_that_its_backend_refuses_is_named():
    class Strict(Deferring):
        def takes_gradient(self, gradient):
            if isinstance(gradient, DeviceArray) and gradient.dtype == np.float16:
                raise ShardcoreValueError("must lie on all 4 devices")
            return super().takes_gradient(gradient)

    with make_engine(Strict()) as e:
        e.enqueue(FEATURES)
        e.dequeue()
        message = r"^gradients\['user'\] must lie on all 4 devices$"
        with pytest.raises(ShardcoreValueError, match=message):
            e.apply_gradients(ones(np.float16))
        e.apply_gradients(ones())
        assert e.step == 1


# --- refused on the device ---------------------------------------------------------------------

VALUE = "gradients['friends'] must be finite in float32: gradients['friends'][1, 0, 1] = nan"
MESSAGE = f"step 1 was refused: {VALUE}"
BAD = {"friends": ((1, 0, 1), np.nan)}
START = [[[i + 0.0] * 2 for i in range(6)], [[i + 0.0] for i in range(5)]]


def source(e):
    return e.checkpoint_tensors()[0]


CALLS = {
    "enqueue": lambda e: e.enqueue(FEATURES),
    "a lookup": lambda e: e(FEATURES),
    "read": lambda e: np.asarray(e.tables["user"]),
    "a row": lambda e: e.tables["user"][1],
    "shards": lambda e: e.tables["user"].shards[0][1],
    "write": lambda e: e.tables["user"].assign(np.zeros((6, 2))),
    "scatter": lambda e: e.tables["user"].scatter_add([1], [[1, 1]]),
    "metrics": lambda e: e.metrics(),
    "checkpoint": lambda e: source(e).read(source(e).boxes[0][1]),
    "restore": lambda e: e.checkpoint_restore(e.checkpoint_metadata(), {}, slots="reset"),
}


def refused(call, message=MESSAGE):
    with pytest.raises(UpdateRefusedError) as info:
        call()
    assert str(info.value) == message
    assert isinstance(info.value, ValueError)


def works(e, step=0):
    """Nothing was changed or is in flight, and training goes on."""
    assert e.step == step
    assert e.metrics()["steps"] == step
    assert rows_of(e) == START
    with pytest.raises(ShardcoreRuntimeError, match=r"^dequeue came without a batch"):
        e.dequeue()
    train(e, ones())
    assert e.step == step + 1
    assert e.metrics()["steps"] == step + 1
    assert e.tables["user"][1].tolist() == [0, 0]


@both
@pytest.mark.parametrize("call", CALLS)
def test_a_refused_update_is_told_by_the_next_call(call, pipeline):
    with make_engine(pipeline=pipeline) as e:
        train(e, ones(**BAD))
        assert e.step == 1
        if call == "restore":  # with all that it needs
            with make_engine("cpu") as other:
                saved = {
                    one.name: SavedTensor(one.shape, one.dtype)
                    for one in other.checkpoint_tensors()
                }
                metadata = other.checkpoint_metadata()
            refused(lambda: e.checkpoint_restore(metadata, saved, slots="load"))
        elif call == "enqueue" and pipeline:
            e.enqueue(FEATURES)  # fails in the background
            with pytest.raises(ShardcoreRuntimeError) as info:
                e.dequeue()
            assert str(info.value) == (
                "enqueue failed in the background, and what was called after it was dropped: "
                f"UpdateRefusedError: {MESSAGE}"
            )
            refusal = info.value.__cause__
            assert isinstance(refusal, UpdateRefusedError)
        else:
            refused(lambda: CALLS[call](e))
        works(e)


@pytest.mark.parametrize("call", ["enqueue", "apply_gradients"])
def test_a_refusal_begins_with_the_name_of_the_call_that_hears_it(call):
    backend = Deferring(patience=2 if call == "apply_gradients" else 1)
    with make_engine(backend) as e:
        train(e, ones(**BAD))
        if call == "apply_gradients":
            e.enqueue(FEATURES)
            e.dequeue()
            backend.patience = 1
            refused(lambda: e.apply_gradients(ones(), name="late"), f"{call} 'late': {MESSAGE}")
        else:
            refused(lambda: e.enqueue(FEATURES, name="late"), f"{call} 'late': {MESSAGE}")
        assert f"{call}/late" not in e.metrics()
        works(e)


@both
def test_batches_after_a_refused_one_stand_with_the_steps_they_were_given(pipeline):
    asked, backend = [], Deferring(patience=9)
    rate = asked_for(asked)
    with make_engine(backend, pipeline, optimizer=sc.optimizers.SGD(rate)) as e:
        train(e, ones())
        train(e, ones(**BAD))
        train(e, ones())
        train(e, ones(user=((0, 0), np.inf)))
        e.enqueue(FEATURES)
        assert e.step == 4
        message = f"2 steps were refused, the first of them step 2: {VALUE}"
        refused(e.metrics, message)
        assert e._backend.reported == [2]
        assert e.step == 2
        assert e.metrics()["steps"] == 2
        with make_engine("cpu") as on_host:
            train(on_host, ones(kind=np.asarray))
            train(on_host, ones(kind=np.asarray))
            assert rows_of(e) == rows_of(on_host)
        with pytest.raises(
            ShardcoreRuntimeError, match=r"^apply_gradients came without a training"
        ):
            e.apply_gradients(ones())
        train(e, ones())
        assert e.step == 3
        assert asked == [0, 1, 2, 3, 2]


def asked_for(steps):
    """A rate of 1 that notes for which steps it was asked."""

    def rate(step):
        steps.append(step)
        return 1.0

    return rate


def test_gradients_of_weights_hear_it():
    with make_engine(Deferring(patience=9)) as e:
        train(e, ones(**BAD))
        weights = {"user": np.ones(3), "friends": None, "item": None}
        refused(lambda: train(e, ones(), weights, weight_gradients=True))
        works(e)


def test_values_that_do_not_fit_are_refused_and_shown_as_given():
    message = (
        "step 1 was refused: gradients['item'] must be finite in float32: "
        "gradients['item'][1, 0] = 1e+39"
    )
    with make_engine() as e:
        train(e, ones(np.float64, item=((1, 0), 1e39)))
        refused(e.metrics, message)
        works(e)


@both
def test_unchecked_gradients_are_not_tested(pipeline):
    with make_engine(pipeline=pipeline, check_gradients=False) as e:
        train(e, ones(**BAD))
        assert np.isnan(e.tables["user"][5]).any()
        assert e.step == 1


@both
def test_close_tells_of_it(pipeline):
    backend = Deferring()
    e = make_engine(backend, pipeline)
    train(e, ones(**BAD))
    refused(e.close)
    assert backend.closed
    assert backend.specs == {}
    assert "closed" in repr(e)
    assert e.step == 0
    e.close()
    assert e.metrics()["steps"] == 0


@both
def test_the_error_of_a_block_goes_first(pipeline):
    body = KeyError("of the block")

    def block():
        with make_engine(pipeline=pipeline) as e:
            train(e, ones(**BAD))
            raise body

    with pytest.raises(KeyError) as info:
        block()
    assert info.value.__notes__ == [MESSAGE]


def test_close_tells_of_a_failure_and_a_refusal():
    backend = Deferring(patience=9)
    e = make_engine(backend, pipeline=True)
    train(e, ones(**BAD))

    def failing(batches):
        raise OSError("no lookup today")

    backend.lookup = failing
    e.enqueue(FEATURES)
    with pytest.raises(ShardcoreRuntimeError, match=r"^enqueue failed in the background") as info:
        e.close()
    assert isinstance(info.value.__cause__, OSError)
    assert info.value.__notes__ == [MESSAGE]
    assert e.step == 0


def test_saving_hears_it_and_saves_nothing(tmp_path):
    with make_engine() as e:
        train(e, ones(**BAD))
        checkpoint = sc.Checkpoint(embedding=e)
        with pytest.raises((UpdateRefusedError, NotCommittedError)):
            checkpoint.save(tmp_path, step=1)
        assert not list(tmp_path.glob("step-*"))
        works(e)


@both
def test_a_thread_that_only_looks_up_hears_it(pipeline):
    with make_engine(Deferring(patience=1), pipeline) as e:
        train(e, ones(**BAD))
        told = []

        def look():
            try:
                e(FEATURES)
            except UpdateRefusedError as error:
                told.append(str(error))

        looker = threading.Thread(target=look)
        looker.start()
        looker.join(20)
        assert told == [MESSAGE]
        works(e)


def test_lookups_of_a_thread_that_hears_it_beside_a_training_one():
    """Whoever hears it, every batch counts once: as a step, or as one that did nothing."""
    backend = Deferring(patience=1)
    with make_engine(backend) as e:
        stop = threading.Event()

        def look():
            while not stop.is_set():
                with contextlib.suppress(UpdateRefusedError):
                    e(FEATURES)

        lookers = [threading.Thread(target=look) for _ in range(2)]
        for looker in lookers:
            looker.start()
        handed_over = 0
        for number in range(150):
            try:
                train(e, ones(**(BAD if number % 3 == 0 else {})))
                handed_over += 1
            except UpdateRefusedError:
                pass
            except ShardcoreRuntimeError as error:  # dropped by a thread that was told
                assert "came without a" in str(error)  # noqa: PT017
        stop.set()
        for looker in lookers:
            looker.join(20)
        with contextlib.suppress(UpdateRefusedError):
            e.metrics()
        assert e.step == e.metrics()["steps"] == handed_over - sum(backend.reported)
        assert 0 < sum(backend.reported) <= 50


# --- the base class ----------------------------------------------------------------------------


class OfBaseClass(ModelBackend):
    """A backend that takes device gradients and leaves the rest to the base class."""

    capabilities = Capabilities(device_arrays=True)
    apply = sc.Backend.apply
    weight_dots = sc.Backend.weight_dots

    def takes_gradient(self, gradient):
        return isinstance(gradient, DeviceArray)


@both
def test_the_base_class_reads_tests_and_reports(pipeline):
    weights = {"user": np.array([1.0, 2.0, 0.5]), "friends": None, "item": None}
    with make_engine(OfBaseClass(), pipeline) as e, make_engine(ModelBackend()) as on_host:
        _, found = train(e, ones(np.float16), weights, weight_gradients=True)
        _, expected = train(on_host, ones(kind=np.asarray), weights, weight_gradients=True)
        np.testing.assert_allclose(found["user"], expected["user"], rtol=1e-6)
        before = rows_of(e)
        assert before == rows_of(on_host)
        train(e, ones(**BAD))
        refused(e.metrics, f"step 2 was refused: {VALUE}")
        assert rows_of(e) == before
        assert e.step == 1
        train(e, ones())
        assert e.step == 2


@both
def test_the_base_class_lets_what_follows_stand(pipeline):
    with make_engine(OfBaseClass(), pipeline) as e, make_engine(ModelBackend()) as on_host:
        backend = e._backend
        backend.check_updates = lambda wait: None  # nobody asks yet
        train(e, ones(**BAD))
        train(e, ones())
        train(on_host, ones(kind=np.asarray))
        assert rows_of(e) == rows_of(on_host)
        del backend.check_updates
        refused(e.metrics)
        assert e.step == 1

"""Calls of Python out of graphs: each time, in order, with arrays of the tensors, and errors."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is not installed")
tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

import shardcore as sc  # noqa: E402
import shardcore.tf as st  # noqa: E402
from shardcore.errors import ShardcoreValueError, UnavailableError  # noqa: E402
from shardcore.tf import operation  # noqa: E402
from shardcore.tf.calls import library, run  # noqa: E402

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "complex64", "complex128"),
]


def graph(function, *dtypes):
    """Return a graph that calls a function of arrays, and returns tensors of what it returns."""
    return tf.function(lambda *given: run(function, given, dtypes), autograph=False)


def numbers(dtype, shape):
    values = np.arange(np.prod(shape)).reshape(shape) % 2
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4), (1,) * 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_dtype_go_in_and_come_out(dtype, shape):
    seen = []

    def same(array):
        seen.append((array.dtype, array.shape, array.flags.writeable))
        return [array]

    given = numbers(dtype, shape)
    (found,) = graph(same, tf.as_dtype(dtype))(tf.constant(given))
    assert seen == [(given.dtype, shape, False)]
    assert found.dtype == dtype
    assert np.array_equal(found.numpy(), given)


def test_several_arrays_of_several_dtypes_keep_their_places():
    def swapped(one, other):
        return [other[::-1], np.float32(one.sum()), np.broadcast_to(one, (2, 3))]

    found = graph(swapped, tf.float64, tf.float32, tf.int64)(
        tf.constant([1, 2, 3], tf.int64), tf.constant([0.5, 1.5], tf.float64)
    )
    assert [one.numpy().tolist() for one in found] == [[1.5, 0.5], 6.0, [[1, 2, 3], [1, 2, 3]]]


def test_nothing_goes_in():
    (found,) = graph(lambda: [np.arange(3)], tf.int64)()
    assert found.numpy().tolist() == [0, 1, 2]


def test_what_comes_out_is_converted():
    (found,) = graph(lambda: [[1, 2]], tf.float32)()
    assert (found.numpy().tolist(), found.dtype) == ([1.0, 2.0], tf.float32)


def aligned(size):
    """Return an array of float32 whose memory a tensor can have."""
    memory = np.zeros(4 * size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + 4 * size].view(np.float32)


def test_a_result_has_the_memory_of_the_array():
    """As long as that is aligned: 64 bytes are."""
    array = aligned(256)
    (found,) = graph(lambda: [array], tf.float32)()
    array[:] = 3
    assert np.all(found.numpy() == 3)
    (copied,) = graph(lambda: [array[1:]], tf.float32)()
    array[:] = 4
    assert np.all(copied.numpy() == 3)


def test_tensorflow_writes_no_array():
    """It writes what an operation returns over what it was given, if nothing else needs that."""
    array = aligned(1 << 12)

    @tf.function(autograph=False)
    def program():
        (found,) = run(lambda: [array], [], [tf.float32])
        return tf.sqrt(tf.ensure_shape(found, array.shape) + 3) * 2

    for _ in range(3):
        assert np.all(program().numpy() == np.float32(2) * np.sqrt(np.float32(3)))
    assert not array.any()


def test_more_axes_than_arrays_have_are_refused():
    told = "ValueError: arrays have at most 64 axes, got 65"
    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
        graph(lambda array: [array], tf.float32)(tf.ones((1,) * 65))


def test_arrays_are_released_when_their_tensors_are_gone():
    class Array(np.ndarray):
        """An array that a weak reference can be made of."""

    alive = []

    def new():
        array = aligned(1 << 20).view(Array)
        alive.append(weakref.ref(array))
        return [array]

    call = graph(new, tf.float32)
    results = [call()[0] for _ in range(3)]
    assert [one() is not None for one in alive] == [True] * 3
    del results[1]
    call()
    assert [one() is not None for one in alive[:3]] == [True, False, True]
    del results
    call()
    assert not any(one() for one in alive[:3])


def test_an_array_that_is_kept_keeps_its_values():
    kept = []

    def keep(array):
        kept.append(array)
        return [np.float32(0)]

    call = graph(keep, tf.float32)
    for value in range(20):
        call(tf.fill((1000,), float(value)))
    assert [set(array.tolist()) for array in kept] == [{float(value)} for value in range(20)]


def test_a_call_is_made_each_time_and_in_order():
    """Though nothing needs what it returns, and what it is given is constant."""
    made = []

    @tf.function(autograph=False)
    def program():
        for name in (3, 1, 2):
            run(lambda array: made.append(int(array)) or [array], [tf.constant(name)], [tf.int32])
        return tf.constant(0)

    program()
    program()
    assert made == [3, 1, 2] * 2


def test_calls_are_made_in_branches_loops_data_and_graphs_of_graphs():
    def double(one):
        (found,) = run(lambda array: [2 * array], [one], [tf.int64])
        return tf.ensure_shape(found, one.shape)

    @tf.function(autograph=False)
    def branch(one):
        return tf.cond(one > 2, lambda: double(one), lambda: one)

    @tf.function(autograph=False)
    def loop(one):
        return tf.while_loop(lambda at, _: at < 3, lambda at, now: (at + 1, double(now)), (0, one))[
            1
        ]

    inner = tf.function(double, autograph=False)
    outer = tf.function(lambda one: inner(inner(one)), autograph=False)
    three = tf.constant(3, tf.int64)
    assert [int(call(three)) for call in (branch, loop, outer)] == [6, 24, 12]
    assert int(branch(three - 2)) == 1
    data = tf.data.Dataset.range(100).map(double, num_parallel_calls=4)
    assert [int(one) for one in data] == list(range(0, 200, 2))


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (ValueError("no such id"), "InvalidArgumentError", "ValueError: no such id"),
        (TypeError("a str"), "InvalidArgumentError", "TypeError: a str"),
        (ShardcoreValueError("id 7"), "InvalidArgumentError", "ShardcoreValueError: id 7"),
        (MemoryError("no room"), "ResourceExhaustedError", "MemoryError: no room"),
        (NotImplementedError("later"), "UnimplementedError", "NotImplementedError: later"),
        (KeyboardInterrupt(), "CancelledError", "KeyboardInterrupt: "),
        (KeyError("ä"), "UnknownError", "KeyError: 'ä'"),
    ],
)
def test_errors_are_tensorflows_with_the_message_and_where_it_was_raised(error, kind, told):
    def fail():
        raise error

    call = graph(fail, tf.float32)
    with pytest.raises(getattr(tf.errors, kind)) as raised:
        call()
    lines = raised.value.message.split("\n")
    assert lines[0].endswith(told)
    assert any(line.endswith("in fail") for line in lines)


@pytest.mark.parametrize("found", [[], [np.zeros(2)] * 3, [np.zeros(2), np.array("a")], None])
def test_what_is_no_result_is_an_error(found):
    with pytest.raises(tf.errors.OpError, match="Error: "):
        graph(lambda: found, tf.float64, tf.float64)()


def test_a_call_of_another_process_is_an_error():
    call = graph(lambda: [np.float32(0)], tf.float32)
    call()
    operation.calls.pop(max(operation.calls))
    with pytest.raises(tf.errors.FailedPreconditionError, match="made in another process"):
        call()


def by_tape(loss, given):
    with tf.GradientTape() as tape:
        tape.watch(given)
        found = loss(given)
    return tape.gradient(found, given)


def by_graph(loss, given):
    return tf.gradients(loss(given), given)[0]


@pytest.mark.parametrize("gradients", [by_tape, by_graph])
def test_no_gradient_goes_through(gradients):
    def loss(given):
        (found,) = run(lambda array: [array], [given * 2], [tf.float32])
        return tf.reduce_sum(found) + tf.reduce_sum(given)

    program = tf.function(lambda given: gradients(loss, given), autograph=False)
    assert program(tf.constant([1.0, 2.0])).numpy().tolist() == [1, 1]


def test_threads_of_tensorflow_stay_known():
    """A thread that Python forgets costs more than a small lookup, and its own values."""
    own, seen = threading.local(), []

    def count():
        own.calls = getattr(own, "calls", 0) + 1
        seen.append((threading.get_ident(), own.calls))
        return [np.float32(0)]

    call = graph(count, tf.float32)
    for _ in range(50):
        call()
    threads = {thread for thread, _ in seen}
    for one in threads:
        counted = [calls for thread, calls in seen if thread == one]
        assert counted == list(range(1, len(counted) + 1))
    assert threading.get_ident() not in threads


def test_many_threads_call_at_once():
    def of_both(one, other):
        return [one + other, one * other]

    call = graph(of_both, tf.int64, tf.int64)
    wrong = []

    def work(seed):
        for at in range(50):
            one, other = np.arange(2000) + seed, np.full(2000, at)
            found = call(tf.constant(one), tf.constant(other))
            if not all(map(np.array_equal, found, of_both(one, other))):
                wrong.append((seed, at))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def bags():
    table = sc.TableConfig(6, 2, initializer=np.ones((6, 2), np.float32), combiner="sum", name="t")
    return st.EmbeddingBags(sc.ShardedEmbedding(sc.FeatureConfig(table), sc.optimizers.SGD(0.5)))


def graph_of(layer, training):
    return tf.function(lambda ids: layer(ids, training=training), autograph=False)


@pytest.mark.parametrize("training", [True, False])
def test_a_graph_keeps_no_table(training):
    """TensorFlow keeps what a graph calls as long as the process lives."""
    layer = bags()
    program = graph_of(layer, training)
    program(tf.constant([[1, 2]]))
    engine, concrete = weakref.ref(layer.engine), weakref.ref(program)
    del layer, program
    gc.collect()
    assert (engine(), concrete()) == (None, None)


def test_a_graph_without_its_layer_is_refused():
    layer = bags()
    ids = tf.TensorSpec((None, 2), tf.int64)
    kept = graph_of(layer, training=False).get_concrete_function(ids)
    token = layer.token  # which TensorFlow asks for
    del layer
    gc.collect()
    told = "ShardcoreRuntimeError: a graph was run whose EmbeddingBags is gone: keep the layer as "
    with pytest.raises(tf.errors.UnknownError, match=told + "long as the graph"):
        kept(tf.constant([[1, 2]], tf.int64))
    assert float(token) == 0


def test_a_tape_outlives_a_layer():
    layer = bags()
    table = layer.engine.tables["t"]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([[1, 2]])))
    weights = layer.trainable_weights
    del layer
    gc.collect()
    tape.gradient(loss, weights)
    assert table[:3, 0].tolist() == [1, 0.5, 0.5]


def test_a_saved_model_calls_the_process_that_made_it(tmp_path):
    model = tf.Module()
    model.layer = bags()
    ids = tf.TensorSpec((None, 2), tf.int64)
    model.serve = tf.function(lambda ids: model.layer(ids, training=False), input_signature=[ids])
    tf.saved_model.save(model, str(tmp_path))
    found = tf.saved_model.load(str(tmp_path)).serve(tf.constant([[1, 2]], tf.int64))
    assert found.numpy().tolist() == [[2, 2]]
    told = inside(
        "from shardcore.tf import calls\n"
        "tf.function(lambda: calls.run(lambda: [0.0], [], [tf.float32]))()\n"
        "print(min(calls.calls) > 1 << 32)  # and none is another process's\n"
        f"served = tf.saved_model.load({str(tmp_path)!r})\n"
        "try:\n"
        "    served.serve(tf.constant([[1, 2]], tf.int64))\n"
        "except tf.errors.FailedPreconditionError as error:\n"
        "    print('made in another process' in error.message)\n"
    )
    assert told == "True\nTrue"


def test_the_library_may_have_several_names(tmp_path):
    told = (
        f"needs TensorFlow's functions in C: libtensorflow_framework.* was not found in {tmp_path}"
    )
    with pytest.raises(UnavailableError, match=re.escape(told)):
        library(str(tmp_path))
    for name in ("libtensorflow_framework.so.2.18.1", "libtensorflow_framework.so.2", "other.so"):
        (tmp_path / name).touch()
    assert library(str(tmp_path)) == str(tmp_path / "libtensorflow_framework.so.2")


def test_a_library_without_the_functions_is_refused(tmp_path):
    (tmp_path / "libtensorflow_framework.so.2").symlink_to(operation.__file__)
    told = inside(
        f"tf.sysconfig.get_lib = lambda: {str(tmp_path)!r}\n"
        "try:\n"
        "    import shardcore.tf\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n",
        start="import tensorflow as tf\n",
    )
    assert told == (
        "UnavailableError shardcore.tf needs TensorFlow's functions in C: TF_NewStatus was not "
        f"found in {tmp_path}/libtensorflow_framework.so.2"
    )


def test_a_process_ends_while_graphs_run():
    code = (
        "import threading, numpy as np\n"
        "from shardcore.tf.calls import run\n"
        "call = tf.function(lambda: run(lambda: [np.zeros(1 << 16)], [], [tf.float64]))\n"
        "def work():\n"
        "    while True:\n"
        "        call()\n"
        "for _ in range(3):\n"
        "    threading.Thread(target=work, daemon=True).start()\n"
        "kept = [call() for _ in range(200)]\n"
        "print(len(kept))\n"
    )
    assert inside(code) == "200"


def inside(code, start="import tensorflow as tf\nimport shardcore.tf\n"):
    """Return what a process of its own printed, which has to end well."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", start + code],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.strip()

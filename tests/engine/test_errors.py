"""Every error of the engine and its backends: class, whole message, and that nothing changed."""

from __future__ import annotations

import numpy as np
import pytest
from shardcore_cpu.backend import CpuBackend
from shardcore_sim.backend import SimBackend

import shardcore as sc
from shardcore.backend import Capabilities
from shardcore.backend.quantization import QuantizationConfig
from shardcore.checkpoint.state import SavedTensor
from shardcore.errors import (
    CorruptCheckpointError,
    ShardcoreError,
    ShardcoreIndexError,
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
    UnknownPluginError,
)
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.ids.ragged import Ragged

BUILT_IN = {
    ShardcoreValueError: ValueError,
    ShardcoreTypeError: TypeError,
    ShardcoreIndexError: IndexError,
    ShardcoreRuntimeError: RuntimeError,
    CorruptCheckpointError: OSError,
    UnknownPluginError: ValueError,
}
ROWS = sc.initializers.RowId()
NAN = float("nan")


def case(name, *values):
    return pytest.param(*values, id=name)


def raises(call, error, message):
    """Check class and whole text of what a call raises."""
    with pytest.raises(ShardcoreError) as info:
        call()
    assert str(info.value) == message
    assert type(info.value) is error
    assert isinstance(info.value, BUILT_IN[error])


def state(e):
    """All that a call which raises must leave alone."""
    slots = {
        (name, slot): np.asarray(values).tobytes()
        for name, group in e.slots.items()
        for slot, values in group.items()
    }
    tables = {name: np.asarray(table).tobytes() for name, table in e.tables.items()}
    return tables, slots, e.step, e.metrics(), repr(e)


def make_engine(backend="cpu", learning_rate=0.5):
    table = TableConfig(5, 2, initializer=ROWS, name="t",
                        optimizer=sc.optimizers.Adagrad(learning_rate))  # fmt: skip
    frozen = TableConfig(3, 1, initializer=ROWS, combiner="sqrtn", name="frozen")
    config = {
        "a": FeatureConfig(table),
        "s": FeatureConfig(table, max_sequence_length=2),
        "o": FeatureConfig(frozen, output_shape=(2, 1)),
    }
    e = sc.ShardedEmbedding(config, backend=backend)
    e.build()
    return e


GOOD = {"a": [[1], [2, 3]], "s": [[1], []], "o": [[0], [1]]}
ONES = {"a": np.ones((2, 2)), "s": np.ones((2, 2, 2)), "o": None}


def good(**changes):
    return {**GOOD, **changes}


def finish(e):
    """The engine works: the batch that waits can be finished, and another follows."""
    before = e.step
    e.apply_gradients(ONES)
    e.enqueue(GOOD)
    e.dequeue()
    e.apply_gradients(ONES)
    assert e.step == before + 2


# --- construction ----------------------------------------------------------------------------


def leaf(**options):
    return FeatureConfig(TableConfig(4, 2, **options))


BACKEND = SimBackend(hosts=2)


class Forgetful(CpuBackend):
    """Looks rows up in a way of its own, and does not round them."""

    name = "forgetful"
    capabilities = Capabilities(quantization=False)


@pytest.mark.parametrize(
    ("config", "options", "error", "message"),
    [
        case("no feature", {}, {}, ShardcoreValueError,
             "feature_config must hold at least one FeatureConfig"),
        case("no config", 3, {}, ShardcoreTypeError,
             "features must be a FeatureConfig, or a dict, list, tuple, named tuple or dataclass "
             "of them, got 3"),
        case("nested no config", {"a": [leaf(), None]}, {}, ShardcoreTypeError,
             "features['a'][1] must be a FeatureConfig, or a dict, list, tuple, named tuple or "
             "dataclass of them, got None"),
        case("a table", [TableConfig(4, 2)], {}, ShardcoreTypeError,
             "features[0] must be a FeatureConfig, or a dict, list, tuple, named tuple or "
             "dataclass of them, got TableConfig(4, 2)"),
        case("optimizer", leaf(), {"optimizer": 0.1}, ShardcoreTypeError,
             "optimizer must be an Optimizer or None, got 0.1"),
        case("pipeline type", leaf(), {"pipeline": 1}, ShardcoreTypeError,
             "pipeline must be a bool, got 1"),
        case("check_gradients type", leaf(), {"check_gradients": None}, ShardcoreTypeError,
             "check_gradients must be a bool, got None"),
        case("seed", leaf(), {"seed": 1.5}, ShardcoreTypeError,
             "seed must be an integer, got 1.5"),
        case("seed bool", leaf(), {"seed": True}, ShardcoreTypeError,
             "seed must be an integer, got True"),
        case("same names", {"x": leaf(name="t"), "y": [leaf(name="t")]}, {}, ShardcoreValueError,
             "tables must have distinct names: features['x'] and features['y'][0] use different "
             "tables named 't'"),
        case("automatic name taken", [leaf(), leaf(name="table_0")], {}, ShardcoreValueError,
             "tables must have distinct names: features[0] and features[1] use different tables "
             "named 'table_0'"),
        case("name of a slot", [leaf(name="a/accumulators"), leaf(name="a")],
             {"optimizer": sc.optimizers.Adagrad()}, ShardcoreValueError,
             "no table may be named 'a/accumulators': checkpoints call slot 'accumulators' of "
             "table 'a' so"),
        case("quantization", leaf(name="q", quantization_config=QuantizationConfig(3, -1, 1)),
             {"backend": Forgetful()}, ShardcoreValueError,
             "table 'q' must have quantization None on backend 'forgetful', got "
             "QuantizationConfig(num_buckets=3, lower=-1.0, upper=1.0)"),
        case("backend type", leaf(), {"backend": 3}, ShardcoreTypeError,
             "backend must be a name or a Backend, got 3"),
        case("unknown backend", leaf(), {"backend": "abacus"}, UnknownPluginError,
             "unknown backend 'abacus'; available: cpu, sim"),
        case("options type", leaf(), {"backend_options": [1]}, ShardcoreTypeError,
             "backend_options must be a mapping, got [1]"),
        case("options keys", leaf(), {"backend": "sim", "backend_options": {3: 4}},
             ShardcoreTypeError, "backend_options must have strings as keys, got 3"),
        case("options name", leaf(), {"backend_options": {"name": "sim"}}, ShardcoreValueError,
             "backend_options must not hold 'name': backend is the name"),
        case("options of an object", leaf(), {"backend": BACKEND, "backend_options": {"hosts": 3}},
             ShardcoreValueError,
             "backend_options {'hosts': 3} are for a backend given by name, got a backend 'sim'"),
        case("unknown option", leaf(), {"backend": "cpu", "backend_options": {"hosts": 2}},
             ShardcoreTypeError,
             "options of backend 'cpu': got an unexpected keyword argument 'hosts'; "
             "it takes: none"),
        case("no hosts", leaf(), {"backend": "sim", "backend_options": {"hosts": 0}},
             ShardcoreValueError, "hosts must be an integer >= 1, got 0"),
        case("hosts type", leaf(), {"backend": "sim", "backend_options": {"hosts": 2.0}},
             ShardcoreTypeError, "hosts must be an integer >= 1, got 2.0"),
        case("hosts bool", leaf(), {"backend": "sim", "backend_options": {"hosts": True}},
             ShardcoreTypeError, "hosts must be an integer >= 1, got True"),
    ],
)  # fmt: skip
def test_construction(config, options, error, message):
    raises(lambda: sc.ShardedEmbedding(config, **options), error, message)


def test_a_backend_serves_one_engine():
    backend = SimBackend(hosts=2)
    first = sc.ShardedEmbedding([leaf(name="b")], backend=backend)
    second = sc.ShardedEmbedding([leaf(name="a"), leaf(name="b")], backend=backend)
    first.build()
    before = state(first)
    message = "backend 'sim' has a table 'b' already: every engine needs a backend of its own"
    raises(second.build, ShardcoreValueError, message)
    assert list(backend.specs) == ["b"]
    assert state(first) == before


# --- order of calls --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        case("zero", 0, ShardcoreValueError, "batch_size must be an integer >= 1, got 0"),
        case("bool", True, ShardcoreTypeError, "batch_size must be an integer >= 1, got True"),
        case("changed", 3, ShardcoreValueError, "batch_size must stay what it was, 2, got 3"),
    ],
)
def test_batch_size(size, error, message):
    e = make_engine()
    e.build(batch_size=2)
    raises(lambda: e.build(batch_size=size), error, message)
    e.enqueue(GOOD)
    e.dequeue()
    finish(e)


def test_a_batch_of_another_size_than_build_was_told():
    e = make_engine()
    e.build(batch_size=2)
    before = state(e)
    for call in (e, e.enqueue):
        raises(lambda call=call: call(good(s=[[1], [2], [3]])), ShardcoreValueError,
               "features['s'] must have the batch size given to build, 2, got 3")  # fmt: skip
    assert state(e) == before
    e.enqueue(GOOD)
    e.dequeue()
    finish(e)


def test_tables_before_build():
    e = sc.ShardedEmbedding(leaf())
    for name in ("tables", "embedding_tables", "slots"):
        raises(lambda name=name: getattr(e, name), ShardcoreRuntimeError,
               "there are no tables yet: build first")  # fmt: skip
    raises(e.checkpoint_metadata, ShardcoreRuntimeError, "there are no tables yet: build first")
    raises(e.checkpoint_tensors, ShardcoreRuntimeError, "there are no tables yet: build first")


def test_calls_without_a_batch():
    e = make_engine()
    before = state(e)
    raises(e.dequeue, ShardcoreRuntimeError, "dequeue came without a batch: enqueue one first")
    nothing = "apply_gradients came without a training batch: enqueue and dequeue one first"
    raises(lambda: e.apply_gradients(ONES), ShardcoreRuntimeError, nothing)
    e.enqueue(GOOD, training=False)
    raises(lambda: e.apply_gradients(ONES), ShardcoreRuntimeError,
           "apply_gradients came for a batch of training=False")  # fmt: skip
    e.dequeue()
    raises(e.dequeue, ShardcoreRuntimeError, "dequeue came without a batch: enqueue one first")
    raises(lambda: e.apply_gradients(None), ShardcoreRuntimeError, nothing)
    assert state(e)[:3] == before[:3]
    e.enqueue(GOOD)
    e.dequeue()
    finish(e)


def test_calls_in_the_wrong_order():
    e = make_engine()
    e.enqueue(GOOD)
    before = state(e)
    raises(lambda: e.apply_gradients(ONES), ShardcoreRuntimeError,
           "apply_gradients came before dequeue")  # fmt: skip
    raises(lambda: e.enqueue(GOOD), ShardcoreRuntimeError,
           "enqueue came while the last batch waits for dequeue")  # fmt: skip
    e.dequeue()
    raises(e.dequeue, ShardcoreRuntimeError, "dequeue came without a batch: enqueue one first")
    raises(lambda: e.enqueue(GOOD), ShardcoreRuntimeError,
           "enqueue came while the last batch waits for apply_gradients "
           "(apply_gradients(None) drops it)")  # fmt: skip
    raises(lambda: e.checkpoint_restore({}, {}, slots="load"), ShardcoreRuntimeError,
           "restore came while a batch is in flight: finish it first")  # fmt: skip
    assert state(e) == before
    finish(e)


def test_training():
    e = make_engine()
    before = state(e)
    raises(lambda: e.enqueue(GOOD, training=1), ShardcoreTypeError,
           "training must be a bool or None, got 1")  # fmt: skip
    assert state(e) == before
    untrained = sc.ShardedEmbedding(leaf())
    raises(lambda: untrained.enqueue([[1]], training=True), ShardcoreRuntimeError,
           "training=True needs an optimizer: no table has one")  # fmt: skip
    untrained.enqueue([[1]])
    assert untrained.dequeue().shape == (1, 2)


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_after_close(backend):
    e = make_engine(backend)
    view, slot = e.tables["t"], e.slots["t"]["accumulators"]
    e.enqueue(GOOD)
    e.close()
    calls = {
        "build": e.build,
        "a lookup": lambda: e(GOOD),
        "enqueue": lambda: e.enqueue(GOOD),
        "dequeue": e.dequeue,
        "apply_gradients": lambda: e.apply_gradients(ONES),
        "reading tables": lambda: e.tables,
        "restore": lambda: e.checkpoint_restore({}, {}, slots="load"),
    }
    for call, function in calls.items():
        raises(function, ShardcoreRuntimeError, f"{call} came after close: the tables are gone")
    gone = "table 't' is gone: its engine was closed"
    raises(lambda: np.asarray(view), ShardcoreRuntimeError, gone)
    raises(lambda: view[1], ShardcoreRuntimeError, gone)
    raises(lambda: slot.shards, ShardcoreRuntimeError, gone)
    raises(lambda: view.assign(np.zeros((5, 2))), ShardcoreRuntimeError, gone)
    raises(lambda: view.scatter_add([1], [[1, 1]]), ShardcoreRuntimeError, gone)
    assert e.step == 0
    assert e.metrics()["lookups"] == 1


# --- features and weights --------------------------------------------------------------------

FORMS = (
    "sc.Ragged, sc.Sparse, a dense array, a tuple (values, row_splits), a list of bags, "
    "a scipy.sparse array, an Arrow column of lists (pyarrow, polars, pandas) or TensorFlow's "
    "RaggedTensor or SparseTensor"
)
NO_WEIGHTS = {"a": None, "s": None, "o": None}


@pytest.mark.parametrize(
    ("features", "weights", "error", "message"),
    [
        case("no dict", [[1]], None, ShardcoreTypeError,
             "features must be a dict, as it is configured, got list"),
        case("missing", {"a": [[1]], "o": [[1], [1]]}, None, ShardcoreValueError,
             "features['s'] is missing: it is configured"),
        case("extra", good(b=[[1]]), None, ShardcoreValueError,
             "features['b'] is not configured: features has ['a'], ['s'], ['o']"),
        case("weights missing", GOOD, {"a": None, "s": None}, ShardcoreValueError,
             "weights['o'] is missing: it is configured"),
        case("weights extra", GOOD, {**NO_WEIGHTS, "b": None}, ShardcoreValueError,
             "weights['b'] is not configured: weights has ['a'], ['s'], ['o']"),
        case("weights container", GOOD, [None], ShardcoreTypeError,
             "weights must be a dict, as it is configured, got list"),
        case("none", good(a=None), None, ShardcoreTypeError,
             f"features['a']: ids must be {FORMS}, got NoneType"),
        case("scalar", good(a=3), None, ShardcoreTypeError,
             "features['a']: ids must come in bags, got the scalar 3; one bag of one id is [[3]]"),
        case("floats", good(a=np.array([[1.0]])), None, ShardcoreTypeError,
             "features['a']: ids must be integers, got dtype float64"),
        case("flat list", good(a=[1, 2]), None, ShardcoreTypeError,
             "features['a']: a list must be a list of bags, got a flat list of integers; "
             "write [[1], [2]] for one id per bag, or [[...]] for one bag of them all"),
        case("splits", good(a=([1, 2], [0, 3, 2])), None, ShardcoreValueError,
             "features['a']: row_splits must be non-decreasing: "
             "row_splits[2] = 2 < row_splits[1] = 3"),
        case("rank of values", good(a=([[1, 2]], [0, 1])), None, ShardcoreValueError,
             "features['a']: values must have rank 1, got shape (1, 2)"),
        case("id too large", good(a=[[1], [2, 5]]), None, ShardcoreIndexError,
             "features['a']: ids[2] = 5 is outside table 't': must be in [0, 5)"),
        case("id negative", good(s=[[1], [-1]]), None, ShardcoreIndexError,
             "features['s']: ids[1] = -1 is outside table 't': must be in [0, 5)"),
        case("id of another table", good(o=[[3], [0]]), None, ShardcoreIndexError,
             "features['o']: ids[0] = 3 is outside table 'frozen': must be in [0, 3)"),
        case("truncated id", good(s=[[1, 2, 9], []]), None, ShardcoreIndexError,
             "features['s']: ids[2] = 9 is outside table 't': must be in [0, 5)"),
        case("output shape", good(o=[[0], [1], [2]]), None, ShardcoreValueError,
             "features['o']: output_shape (2, 1) must hold as many vectors as there are bags, 3, "
             "got 2"),
        case("sequence weights", GOOD, {**NO_WEIGHTS, "s": np.ones(1)}, ShardcoreValueError,
             "weights['s']: weights are refused for a sequence, whose rows are not combined; "
             "features['s'] has max_sequence_length = 2"),
        case("sequence own weights", good(s=Ragged([1], [0, 1, 1], [1.0])), None,
             ShardcoreValueError,
             "weights['s']: weights are refused for a sequence, whose rows are not combined; "
             "features['s'] has max_sequence_length = 2"),
        case("weights length", GOOD, {**NO_WEIGHTS, "a": np.ones(4)}, ShardcoreValueError,
             "weights['a']: weights must have a weight per id, shape (3,), got shape (4,)"),
        case("weights rank", GOOD, {**NO_WEIGHTS, "a": np.ones((3, 1))}, ShardcoreValueError,
             "weights['a']: weights must have a weight per id, shape (3,), got shape (3, 1)"),
        case("weights dtype", GOOD, {**NO_WEIGHTS, "a": np.ones(3, complex)}, ShardcoreTypeError,
             "weights['a']: weights must be float16, bfloat16, float32 or float64, "
             "got dtype complex128"),
        case("weights nan", GOOD, {**NO_WEIGHTS, "a": np.array([1, NAN, 1])}, ShardcoreValueError,
             "weights['a']: weights must be finite, got nan at position 1"),
        case("weights inf", GOOD, {**NO_WEIGHTS, "o": np.array([1, -np.inf])}, ShardcoreValueError,
             "weights['o']: weights must be finite, got -inf at position 1"),
        case("weights overflow", GOOD, {**NO_WEIGHTS, "a": np.array([1, 1, 1e39])},
             ShardcoreValueError, "weights['a']: weights[2] = 1e+39 does not fit float32"),
        case("sum of weights overflows", GOOD, {**NO_WEIGHTS, "a": np.array([1, 2e38, 2e38])},
             ShardcoreValueError,
             "weights['a']: the weights of bag 1 are too large: "
             "the divisor of combiner 'mean' does not fit float32"),
        case("squares overflow", GOOD, {**NO_WEIGHTS, "o": np.array([1e30, 1])},
             ShardcoreValueError,
             "weights['o']: the weights of bag 0 are too large: "
             "the divisor of combiner 'sqrtn' does not fit float32"),
        case("weights twice", good(a=Ragged([1, 2, 3], [0, 1, 3], [1.0, 1, 1])),
             {**NO_WEIGHTS, "a": np.ones(3)}, ShardcoreValueError,
             "weights['a']: the ids have weights of their own (Ragged.weights or the data of a "
             "scipy.sparse array); give None here"),
        case("weights splits", GOOD, {**NO_WEIGHTS, "a": Ragged([1.0, 1, 1], [0, 2, 3])},
             ShardcoreValueError,
             "weights['a']: weights must have the row_splits of the ids: "
             "bag 0 has 1 ids and 2 weights"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_inputs(backend, features, weights, error, message):
    e = make_engine(backend)
    before = state(e)
    raises(lambda: e(features, weights), error, message)
    raises(lambda: e.enqueue(features, weights), error, message)
    assert state(e) == before
    e.enqueue(GOOD)
    before = state(e)
    raises(lambda: e(features, weights), error, message)  # while a batch waits
    assert state(e) == before
    e.dequeue()
    finish(e)


def test_output_shape_of_a_sequence():
    feature = FeatureConfig(TableConfig(4, 2), max_sequence_length=3, output_shape=(2, 2))
    e = sc.ShardedEmbedding(feature)
    raises(lambda: e([[1], [2]]), ShardcoreValueError,
           "features: output_shape (2, 2) must hold as many vectors as there are positions, 6, "
           "got 4")  # fmt: skip


# --- gradients -------------------------------------------------------------------------------


def ones(**changes):
    return {**ONES, **changes}


def with_value(value, dtype=np.float64):
    array = np.ones((2, 2, 2), dtype)
    array[1, 0, 1] = value
    return array


@pytest.mark.parametrize(
    ("gradients", "error", "message"),
    [
        case("no dict", [np.ones((2, 2))], ShardcoreTypeError,
             "gradients must be a dict, as it is configured, got list"),
        case("missing", {"a": None, "s": None}, ShardcoreValueError,
             "gradients['o'] is missing: it is configured"),
        case("extra", ones(b=None), ShardcoreValueError,
             "gradients['b'] is not configured: gradients has ['a'], ['s'], ['o']"),
        case("no array", ones(a="x"), ShardcoreTypeError,
             "gradients['a'] must be an array, got str"),
        case("rank", ones(a=np.ones(4)), ShardcoreValueError,
             "gradients['a'] must have the shape of the activations, (2, 2), got (4,)"),
        case("columns", ones(a=np.ones((2, 3))), ShardcoreValueError,
             "gradients['a'] must have the shape of the activations, (2, 2), got (2, 3)"),
        case("broadcast", ones(a=np.ones((1, 2))), ShardcoreValueError,
             "gradients['a'] must have the shape of the activations, (2, 2), got (1, 2)"),
        case("sequence", ones(s=np.ones((4, 2))), ShardcoreValueError,
             "gradients['s'] must have the shape of the activations, (2, 2, 2), got (4, 2)"),
        case("bool", ones(a=np.ones((2, 2), bool)), ShardcoreTypeError,
             "gradients['a'] must be real numbers, got dtype bool"),
        case("complex", ones(a=np.ones((2, 2), complex)), ShardcoreTypeError,
             "gradients['a'] must be real numbers, got dtype complex128"),
        case("strings", ones(a=np.full((2, 2), "x")), ShardcoreTypeError,
             "gradients['a'] must be float16, bfloat16, float32 or float64, got dtype <U1"),
        case("nan", ones(s=with_value(NAN)), ShardcoreValueError,
             "gradients['s'] must be finite in float32: gradients['s'][1, 0, 1] = nan"),
        case("inf", ones(s=with_value(-np.inf, np.float16)), ShardcoreValueError,
             "gradients['s'] must be finite in float32: gradients['s'][1, 0, 1] = -inf"),
        case("overflow", ones(s=with_value(1e39)), ShardcoreValueError,
             "gradients['s'] must be finite in float32: gradients['s'][1, 0, 1] = 1e+39"),
        case("no optimizer", ones(o=np.ones((2, 1, 1))), ShardcoreValueError,
             "gradients['o'] must be None: table 'frozen' has no optimizer"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_gradients(backend, gradients, error, message):
    e = make_engine(backend)
    e.enqueue(GOOD)
    e.dequeue()
    before = state(e)
    for weight_gradients in (False, True):
        raises(lambda w=weight_gradients: e.apply_gradients(gradients, w), error, message)
    assert state(e) == before
    finish(e)


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        case("negative", -1, ShardcoreValueError, "got -1"),
        case("nan", NAN, ShardcoreValueError, "got nan"),
        case("too large", 1e39, ShardcoreValueError, "got 1e+39"),
        case("none", None, ShardcoreTypeError, "got None"),
        case("bool", True, ShardcoreTypeError, "got True"),
    ],
)
@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_learning_rates(backend, result, error, message):
    rates = [result]
    e = make_engine(backend, learning_rate=lambda: rates[0])
    e.enqueue(GOOD)
    e.dequeue()
    before = state(e)
    rule = "learning_rate() must return a number >= 0, finite as float32, "
    raises(lambda: e.apply_gradients(ONES), error, rule + message)
    assert state(e) == before
    rates[0] = 0.5
    finish(e)


def test_a_learning_rate_that_fails_leaves_every_table_alone():
    def broken():
        raise ZeroDivisionError("no rate")

    good_table = TableConfig(4, 2, name="first", optimizer=sc.optimizers.SGD(1.0))
    bad_table = TableConfig(4, 2, name="second", optimizer=sc.optimizers.SGD(broken))
    e = sc.ShardedEmbedding([FeatureConfig(good_table), FeatureConfig(bad_table)])
    e.enqueue([[[1]], [[1]]])
    e.dequeue()
    before = state(e)
    with pytest.raises(ZeroDivisionError, match="no rate"):
        e.apply_gradients([np.ones((1, 2)), np.ones((1, 2))])
    assert state(e) == before
    e.apply_gradients([np.ones((1, 2)), None])  # the batch still waited
    assert e.step == 1


# --- restore ---------------------------------------------------------------------------------

ADAGRAD = {"name": "Adagrad", "learning_rate": 0.5, "initial_accumulator_value": 0.1}


def record(name="t", named=True, optimizer=ADAGRAD, slots=("accumulators",)):
    return {"name": name, "named": named, "optimizer": optimizer, "slots": list(slots)}


FROZEN = record("frozen", True, None, ())
SHAPES = {"t": (5, 2), "t/accumulators": (5, 2), "frozen": (3, 1)}


def metadata(*tables, step=7):
    return {"step": step, "seed": 0, "tables": list(tables)}


def saved(**changes):
    tensors = {name: SavedTensor(shape, np.dtype("float32")) for name, shape in SHAPES.items()}
    return {**tensors, **changes}


WHOLE = metadata(record(), FROZEN)


def without(name):
    return {key: value for key, value in saved().items() if key != name}


@pytest.mark.parametrize(
    ("described", "tensors", "error", "message"),
    [
        case("step", metadata(record(), FROZEN, step=-1), saved(), CorruptCheckpointError,
             "metadata of an engine must have a step >= 0, got -1"),
        case("step bool", metadata(record(), FROZEN, step=True), saved(), CorruptCheckpointError,
             "metadata of an engine must have a step >= 0, got True"),
        case("no step", {}, saved(), CorruptCheckpointError,
             "metadata of an engine must have a step >= 0, got None"),
        case("no tables", {"step": 1, "tables": 3}, saved(), CorruptCheckpointError,
             "metadata of an engine must have a list of tables, got 3"),
        case("no seed", {"step": 1, "tables": []}, saved(), CorruptCheckpointError,
             "metadata of an engine must have an integer as seed, got None"),
        case("seed bool", {**WHOLE, "seed": True}, saved(), CorruptCheckpointError,
             "metadata of an engine must have an integer as seed, got True"),
        *(
            case(f"malformed {what}", metadata(entry), saved(), CorruptCheckpointError,
                 f"metadata of an engine has a malformed table {entry!r}")
            for what, entry in (
                ("entry", 3), ("name", record(name=3)), ("named", record(named=1)),
                ("slots", {**record(), "slots": "x"}), ("optimizer", record(optimizer="x")),
            )
        ),
        case("missing table", metadata(record("u"), record("v")), saved(), ShardcoreValueError,
             "the checkpoint has no table 't', 'frozen'; it has 'u', 'v'"),
        case("no table at all", metadata(), saved(), ShardcoreValueError,
             "the checkpoint has no table 't', 'frozen'; it has none"),
        case("automatic name", metadata(record(named=False), FROZEN, record("u")), saved(),
             ShardcoreValueError,
             "table 't' has an automatic name, which means nothing to another set of tables: "
             "the checkpoint has 't', 'frozen', 'u', the engine 'frozen', 't'; name the tables"),
        case("optimizer", metadata(record(optimizer={"name": "FTRL"}), FROZEN), saved(),
             ShardcoreValueError,
             "table 't' was saved with optimizer FTRL, the engine has Adagrad; "
             "restore with slots='reset' to begin with fresh slots"),
        case("no optimizer", metadata(record(optimizer=None), FROZEN), saved(),
             ShardcoreValueError,
             "table 't' was saved with optimizer None, the engine has Adagrad; "
             "restore with slots='reset' to begin with fresh slots"),
        case("slots", metadata(record(slots=("a", "b")), FROZEN), saved(), ShardcoreValueError,
             "table 't' was saved with slots ['a', 'b'], the engine has ['accumulators']; "
             "restore with slots='reset' to begin with fresh slots"),
        case("no tensor", WHOLE, without("t/accumulators"), CorruptCheckpointError,
             "the checkpoint names tensor 't/accumulators' but does not hold it"),
        case("shape", WHOLE, saved(t=SavedTensor((5, 3), np.dtype("float32"))),
             ShardcoreValueError,
             "tensor 't' was saved as float32 (5, 3), the engine has float32 (5, 2)"),
        case("dtype", WHOLE, saved(frozen=SavedTensor((3, 1), np.dtype("float64"))),
             ShardcoreValueError,
             "tensor 'frozen' was saved as float64 (3, 1), the engine has float32 (3, 1)"),
    ],
)  # fmt: skip
def test_restore(described, tensors, error, message):
    e = make_engine()
    before = state(e)
    raises(lambda: e.checkpoint_restore(described, tensors, slots="load"), error, message)
    assert state(e) == before
    e.enqueue(GOOD)
    e.dequeue()
    finish(e)


def test_the_restore_that_the_cases_above_break_works():
    e = make_engine()
    plan = e.checkpoint_restore(WHOLE, saved(), slots="load")
    assert list(plan.writes) == ["t", "t/accumulators", "frozen"]
    plan.begin()
    plan.commit()
    assert e.step == 7

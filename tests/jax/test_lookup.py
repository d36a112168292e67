"""A lookup in JAX's functions: its activations, its updates, and the gradients of weights."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

from dictionary_backend import Dictionary  # noqa: E402
from jax import numpy as jnp  # noqa: E402

import shardcore as sc  # noqa: E402
import shardcore.jax as sj  # noqa: E402

IDS = jnp.array([[1, 2], [2, 4]])


def table(**options):
    options = {"initializer": sc.initializers.RowId(), "combiner": "sum", "name": "t", **options}
    return sc.TableConfig(6, 2, **options)


def one(**options):
    feature = {
        key: options.pop(key) for key in ("max_sequence_length", "output_shape") if key in options
    }
    optimizer = options.pop("optimizer", sc.optimizers.SGD(0.5))
    config = sc.FeatureConfig(table(**options.pop("table", {})), **feature)
    return sc.ShardedEmbedding(config, optimizer, **options)


def two(**options):
    shared = table()
    features = {"a": sc.FeatureConfig(shared), "b": [sc.FeatureConfig(shared)]}
    return sc.ShardedEmbedding(
        features, options.pop("optimizer", sc.optimizers.SGD(0.5)), **options
    )


def column(engine):
    jax.effects_barrier()
    return engine.tables["t"][:, 0].tolist()


WAYS = {
    "eager": lambda loss: jax.value_and_grad(loss),
    "jit of grad": lambda loss: jax.jit(jax.value_and_grad(loss)),
    "grad of jit": lambda loss: jax.value_and_grad(jax.jit(loss)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["cpu", "sim", "third party"])
def test_backward_updates_once_in_every_way(way, backend):
    backend = Dictionary() if backend == "third party" else backend
    engine = one(backend=backend)
    lookup, token = sj.lookup(engine), sj.token(engine)
    learn = WAYS[way](lambda token, ids: lookup(ids, token).sum())
    value, gradient = learn(token, IDS)
    assert (float(value), float(gradient), gradient.dtype) == (18.0, 0.0, jnp.float32)
    assert column(engine) == [0, 0.5, 1, 3, 3.5, 5]
    assert (engine.step, engine.in_flight) == (1, 0)
    value, _ = learn(token, IDS)
    assert float(value) == 12.0
    assert column(engine) == [0, 0, 0, 3, 3, 5]
    assert (engine.step, engine.in_flight) == (2, 0)


CONSTANT = [
    lambda lookup, token: lookup(IDS),
    lambda lookup, token: lookup(IDS, token),
    lambda lookup, token: jax.grad(lambda w: (lookup(IDS) * w).sum())(2.0),
    lambda lookup, token: jax.grad(lambda w: (lookup(IDS, token) * w).sum())(2.0),
]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("call", CONSTANT)
def test_without_differentiation_of_the_token_rows_stay(call, compiled):
    engine = one()
    lookup, token = sj.lookup(engine), sj.token(engine)

    def program(token):
        return call(lookup, token)

    (jax.jit(program) if compiled else program)(token)
    jax.effects_barrier()
    assert (engine.step, engine.in_flight, engine.metrics()["lookups"]) == (0, 0, 1)


def test_a_compiled_lookup_reads_rows_as_they_are_when_it_runs():
    engine = one()
    lookup = sj.lookup(engine)
    constant = jax.jit(lambda: lookup(np.array([[1, 2]])))
    assert constant().tolist() == [[3.0, 3.0]]
    engine.tables["t"][1] = 10.0
    assert constant().tolist() == [[12.0, 12.0]]
    learn = jax.jit(jax.value_and_grad(lambda token: lookup(np.array([[1, 2]]), token).sum()))
    assert [float(learn(jnp.zeros(()))[0]) for _ in range(2)] == [24.0, 22.0]
    assert engine.step == 2


@pytest.mark.parametrize("compiled", [False, True])
def test_every_structure_and_form(compiled):
    engine = two()
    lookup = sj.lookup(engine)
    call = jax.jit(lookup) if compiled else lookup
    ragged = sc.Ragged([1, 2, 4], [0, 2, 2, 3])
    for ids, expected in (
        (jnp.array([1, 5]), [1, 5]),
        (np.array([[1, 5]], np.uint8), [6]),
        (jnp.array([[[1], [5]]]), [[1, 5]]),
        (jnp.zeros((0, 3), int), []),
        (ragged, [3, 0, 4]),
        ((jnp.array([1, 2, 4]), jnp.array([0, 2, 2, 3])), [3, 0, 4]),
        (sc.Ragged([1, 2, 4], [0, 2, 2, 3], [1.0, 2.0, 0.5]), [5, 0, 2]),
    ):
        found = call({"b": [ids], "a": IDS})
        assert sorted(found) == ["a", "b"]
        assert type(found["b"]) is list
        assert isinstance(found["b"][0], jax.Array)
        assert found["b"][0].dtype == jnp.float32
        assert found["b"][0][..., 0].tolist() == expected
        assert found["a"][:, 0].tolist() == [3, 6]


def test_sequences_and_output_shapes():
    sequence = sj.lookup(one(max_sequence_length=3))
    found = jax.jit(sequence)(sc.Ragged([1, 2, 4, 4, 4, 4], [0, 2, 6]))
    assert found[..., 0].tolist() == [[1, 2, 0], [4, 4, 4]]
    square = sj.lookup(one(output_shape=(2, 2)))
    assert jax.jit(square)(jnp.arange(4))[..., 0].tolist() == [[0, 1], [2, 3]]


def test_double_tables_give_doubles_where_jax_has_them():
    lookup = sj.lookup(one(table={"dtype": "float64"}))
    jax.config.update("jax_enable_x64", True)
    try:
        found = jax.jit(lookup)(IDS)
        assert (found.dtype, found[:, 0].tolist()) == (jnp.float64, [3, 6])
    finally:
        jax.config.update("jax_enable_x64", False)


def test_a_feature_that_the_loss_leaves_out_touches_no_row():
    engine = two(optimizer=sc.optimizers.SGD(0.5, weight_decay_factor=0.5))
    lookup, token = sj.lookup(engine), sj.token(engine)
    features = {"a": IDS, "b": [jnp.array([5])]}
    jax.jit(jax.grad(lambda token: 0.0 * lookup(features, token)["a"].sum()))(token)
    assert column(engine) == [0, 0.5, 1, 3, 2, 5]
    assert (engine.step, engine.in_flight) == (1, 0)


def test_a_table_without_optimizer_beside_one_that_learns():
    frozen = table(name="frozen")
    learning = table(optimizer=sc.optimizers.SGD(0.5))
    engine = sc.ShardedEmbedding([sc.FeatureConfig(frozen), sc.FeatureConfig(learning)])
    lookup, token = sj.lookup(engine), sj.token(engine)
    jax.jit(jax.grad(lambda token: sum(one.sum() for one in lookup([IDS, IDS], token))))(token)
    assert column(engine) == [0, 0.5, 1, 3, 3.5, 5]
    assert engine.tables["frozen"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", ["dense", "flat", "ragged", "with the ids"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_gradients_of_weights_are_the_engines(way, form, combiner):
    engine, same = one(table={"combiner": combiner}), one(table={"combiner": combiner})
    lookup, token = sj.lookup(engine), sj.token(engine)
    flat, splits = np.array([0.5, 2.0, 1.0, 4.0], np.float32), np.array([0, 2, 4])
    gradient = np.array([[1.0, 3.0], [2.0, -1.0]], np.float32)
    handle = same.lookup(np.asarray(IDS), flat)
    expected = handle.apply_gradients(gradient, weight_gradients=True).reshape(-1)

    def loss(weights, token):
        if form == "with the ids":
            found = lookup(weights, token)
        elif form == "ragged":
            found = lookup((np.asarray(IDS).reshape(-1), splits), token, weights)
        else:
            found = lookup(IDS, token, weights)
        return (found * gradient).sum()

    weights = {
        "dense": jnp.asarray(flat.reshape(2, 2)),
        "flat": jnp.asarray(flat),
        "ragged": sc.Ragged(flat, splits),
        "with the ids": sc.Ragged(np.asarray(IDS).reshape(-1), splits, flat),
    }[form]
    if form in ("dense", "flat"):
        learn = WAYS[way](lambda both, _: loss(*both))
        _, (found, _) = learn((weights, token), None)
        assert found.shape == weights.shape
    else:
        parts, tree = jax.tree.flatten(weights)
        at = 0 if form == "ragged" else 2
        learn = WAYS[way](
            lambda both, _: loss(tree.unflatten([*parts[:at], both[0], *parts[at + 1 :]]), both[1])
        )
        _, (found, _) = learn((jnp.asarray(flat), token), None)
    assert np.asarray(found).reshape(-1).tolist() == expected.tolist()
    assert engine.tables["t"][:].tolist() == same.tables["t"][:].tolist()


def test_weights_of_a_feature_that_the_loss_leaves_out_have_zeros():
    engine = two()
    lookup, token = sj.lookup(engine), sj.token(engine)
    features = {"a": IDS, "b": [IDS]}

    def loss(both):
        weights, token = both
        return lookup(features, token, {"a": weights, "b": [weights**2]})["a"].sum()

    found, _ = jax.jit(jax.grad(loss))((jnp.full((2, 2), 3.0), token))
    assert found.tolist() == [[2, 4], [4, 8]]


def test_a_ragged_keeps_all_it_holds_in_a_pytree():
    ragged = sc.Ragged([1, 2, 4], [0, 2, 3], [1.0, 2.0, 3.0])
    leaves, tree = jax.tree.flatten({"a": ragged})
    assert len(leaves) == 3
    assert tree.unflatten(leaves)["a"] == ragged
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path({"a": ragged})]
    assert paths == ["['a'].values", "['a'].row_splits", "['a'].weights"]
    shapes = jax.eval_shape(lambda given: given, ragged)
    assert repr(shapes).startswith("Ragged(ShapeDtypeStruct(shape=(3,)")
    out_of_order = sc.Sparse([[1, 0], [0, 0]], [7, 5], (2, 1)).by_bag()
    back = jax.tree.map(lambda leaf: leaf, out_of_order)
    assert back._given_order.tolist() == out_of_order._given_order.tolist() == [1, 0]


def test_a_batch_that_is_spread_over_devices_is_one_lookup_and_one_step():
    code = """
import jax, numpy as np
from jax import numpy as jnp
import shardcore as sc, shardcore.jax as sj
from jax.sharding import AxisType, NamedSharding, PartitionSpec
table = sc.TableConfig(6, 2, initializer=sc.initializers.RowId(), combiner="sum", name="t")
engine = sc.ShardedEmbedding(sc.FeatureConfig(table), sc.optimizers.SGD(0.5))
lookup, token = sj.lookup(engine), sj.token(engine)
mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
ids = jax.device_put(np.array([[1, 2], [2, 4]]), NamedSharding(mesh, PartitionSpec("batch")))
token = jax.device_put(token, NamedSharding(mesh, PartitionSpec()))
value, _ = jax.jit(jax.value_and_grad(lambda token, ids: lookup(ids, token).sum()))(token, ids)
jax.effects_barrier()
print(float(value), engine.step, engine.in_flight, engine.metrics()["lookups"], len(ids.devices()))
print(engine.tables["t"][:, 0].tolist())
only_read = sc.ShardedEmbedding(sc.FeatureConfig(table))
found = jax.jit(lambda ids: sj.lookup(only_read)(ids).sum())(ids)
print(float(found), only_read.metrics()["lookups"])
"""
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, **flags},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    told = "18.0 1 0 1 2\n[0.0, 0.5, 1.0, 3.0, 3.5, 5.0]\n18.0 1\n"
    assert done.stdout == told, done.stderr


def test_an_engine_that_is_only_read_keeps_no_order():
    engine = one(optimizer=None)
    lookup = sj.lookup(engine)
    assert not jax.make_jaxpr(lookup)(IDS).effects
    compiled = jax.jit(lookup)
    assert compiled(IDS)[:, 0].tolist() == lookup(IDS)[:, 0].tolist() == [3, 6]
    engine.tables["t"].assign(np.ones((6, 2), np.float32))
    assert compiled(IDS)[:, 0].tolist() == [2, 2]
    looked_up = engine.metrics()["lookups"]
    unused = jax.jit(lambda ids: (lookup(ids), ids)[1])
    assert unused(IDS).tolist() == IDS.tolist()
    assert engine.metrics()["lookups"] == looked_up
    weights = jnp.ones(2)

    def loss(weights):  # which JAX allows around what has no effects, and makes again for gradients
        return (jax.checkpoint(lambda weights: jnp.tanh(lookup(IDS) @ weights))(weights)).sum()

    assert jax.grad(loss)(weights).tolist() == pytest.approx(
        jax.jit(jax.grad(loss))(weights).tolist()
    )


def test_a_program_that_is_interpreted_looks_up_too():
    engine = one()
    program = jax.make_jaxpr(sj.lookup(engine))(IDS)
    (found,) = jax.core.eval_jaxpr(program.jaxpr, program.consts, IDS)
    assert found[:, 0].tolist() == [3, 6]


@pytest.mark.parametrize("optimizer", [None, sc.optimizers.SGD(0.5)])
def test_a_compiled_call_is_an_operation_of_our_own_on_one_cpu(optimizer, monkeypatch):
    def other(*_, **__):
        raise AssertionError("JAX's own calls move what they are given")

    monkeypatch.setattr("shardcore.jax.on_host.io_callback", other)
    monkeypatch.setattr(jax, "pure_callback", other)
    assert jax.jit(sj.lookup(one(optimizer=optimizer)))(IDS)[:, 0].tolist() == [3, 6]


def test_calls_are_made_in_the_order_of_the_program_and_of_programs():
    engine = one()
    lookup, token = sj.lookup(engine), sj.token(engine)

    def program(token):
        before = lookup(IDS)
        value, _ = jax.value_and_grad(lambda token: lookup(IDS, token).sum())(token)
        return before, value, lookup(IDS)

    effects = jax.make_jaxpr(program)(token).effects
    assert {str(effect) for effect in effects} == {"OrderedIO"}
    before, value, after = jax.jit(program)(token)
    assert (before.sum(), value, after.sum()) == (18, 18, 12)
    learn = jax.jit(jax.grad(lambda token: lookup(IDS, token).sum()))
    learn(token)

    @jax.jit
    def slow(much):
        for _ in range(6):
            much = jnp.tanh(much @ much)
        return 0 * much[0, 0]

    much = jnp.ones((1000, 1000))
    learn(slow(much))
    assert lookup(IDS).sum() == 0
    learn(slow(much))  # computed behind this thread, and so is the program that waits for it
    assert lookup(IDS).sum() == -6

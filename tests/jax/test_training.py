"""Whole loops of JAX's users over an engine's tables, and how many lookups wait meanwhile."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

from jax import numpy as jnp  # noqa: E402

import shardcore as sc  # noqa: E402
import shardcore.jax as sj  # noqa: E402
from shardcore.errors import ShardcoreRuntimeError  # noqa: E402


def make(optimizer=None, **options):
    user = sc.TableConfig(50, 4, combiner="mean", name="user")
    item = sc.TableConfig(30, 3, combiner="sqrtn", name="item", dtype="float16")
    features = {
        "clicks": sc.FeatureConfig(user),
        "likes": sc.FeatureConfig(user),
        "seen": sc.FeatureConfig(item, max_sequence_length=2),
    }
    return sc.ShardedEmbedding(features, optimizer or sc.optimizers.Adam(0.1), **options)


def batches(count):
    rng = np.random.default_rng(5)
    for _ in range(count):
        splits = np.concatenate([[0], np.cumsum(rng.integers(0, 4, 6))])
        seen = sc.Ragged(rng.integers(0, 30, 9), [0, 2, 2, 5, 6, 6, 9])
        yield (
            {
                "clicks": rng.integers(0, 50, (6, 3)),
                "likes": sc.Ragged(rng.integers(0, 50, splits[-1]), splits),
                "seen": seen,
            },
            {
                "clicks": rng.standard_normal((6, 4), np.float32),
                "likes": rng.standard_normal((6, 4), np.float32),
                "seen": rng.standard_normal((6, 2, 3), np.float32),
            },
        )


@pytest.mark.parametrize("backend", ["cpu", "sim"])
@pytest.mark.parametrize("pipeline", [False, True])
def test_the_bits_are_those_of_enqueue_dequeue_and_apply_gradients(backend, pipeline):
    engine, same = make(backend=backend, pipeline=pipeline), make(backend=backend)
    lookup, token = sj.lookup(engine), sj.token(engine)

    @jax.jit
    def learn(token, features, gradients):
        def loss(token):
            found = lookup(features, token)
            products = jax.tree.map(lambda one, given: (one * given).sum(), found, gradients)
            return sum(jax.tree.leaves(products)), found

        return jax.value_and_grad(loss, has_aux=True)(token)

    for features, gradients in batches(4):
        (_, found), _ = learn(token, features, gradients)
        same.enqueue(features)
        expected = same.dequeue()
        same.apply_gradients(gradients)
        for name, array in expected.items():
            assert np.array_equal(found[name], array)
    assert engine.step == same.step == 4
    for name, rows in same.tables.items():
        assert np.array_equal(engine.tables[name][:], rows[:])
        for slot, values in same.slots[name].items():
            assert np.array_equal(engine.slots[name][slot][:], values[:])
    engine.close()
    same.close()


def rows(engine):
    jax.effects_barrier()
    return engine.tables["user"][:]


def data():
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 50, (64, 3))
    return jnp.asarray(ids), jnp.asarray(ids.sum(1) > 75, jnp.float32)


@pytest.mark.parametrize("name", ["sgd", "adamw", "adafactor"])
def test_a_loop_of_optax_learns_and_leaves_the_token(name):
    optax = pytest.importorskip("optax", reason="optax is not installed")
    user = sc.TableConfig(50, 4, combiner="mean", name="user")
    engine = sc.ShardedEmbedding(sc.FeatureConfig(user), sc.optimizers.Adagrad(0.5))
    lookup = sj.lookup(engine)
    params = {"w": jnp.ones(4), "token": sj.token(engine)}
    optimizer = getattr(optax, name)(0.05)
    state = optimizer.init(params)

    def loss(params, ids, y):
        logits = lookup(ids, params["token"]) @ params["w"]
        return optax.sigmoid_binary_cross_entropy(logits, y).mean()

    @jax.jit
    def step(params, state, ids, y):
        value, grads = jax.value_and_grad(loss)(params, ids, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    ids, y = data()
    values = []
    for _ in range(60):
        params, state, value = step(params, state, ids, y)
        values.append(float(value))
    assert values[-1] < 0.5 * values[0]
    assert float(params["token"]) == 0.0
    assert (engine.step, engine.in_flight) == (60, 0)


def test_a_module_of_flax_linen_learns():
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")
    user = sc.TableConfig(50, 4, combiner="mean", name="user")
    engine = sc.ShardedEmbedding(sc.FeatureConfig(user), sc.optimizers.SGD(0.5))
    lookup = sj.lookup(engine)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, ids):
            token = self.param("token", lambda key: sj.token(engine))
            return nn.Dense(1)(lookup(ids, token))[:, 0]

    ids, y = data()
    model = Model()
    params = model.init(jax.random.key(0), ids)
    assert engine.step == 0
    before = rows(engine)
    learn = jax.jit(jax.grad(lambda params: ((model.apply(params, ids) - y) ** 2).mean()))
    grads = learn(params)
    assert float(grads["params"]["token"]) == 0.0
    named = np.unique(ids)
    assert engine.step == 1
    assert (np.delete(rows(engine), named, 0) == np.delete(before, named, 0)).all()
    assert (rows(engine)[named] != before[named]).all()


@pytest.mark.slow
def test_a_module_of_flax_nnx_learns():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
    optax = pytest.importorskip("optax", reason="optax is not installed")
    user = sc.TableConfig(50, 4, combiner="mean", name="user")
    engine = sc.ShardedEmbedding(sc.FeatureConfig(user), sc.optimizers.Adagrad(0.5))

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.lookup = sj.lookup(engine)
            self.token = nnx.Param(sj.token(engine))
            self.dense = nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, ids):
            return self.dense(self.lookup(ids, self.token[...]))[:, 0]

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.05), wrt=nnx.Param)
    ids, y = data()

    @nnx.jit
    def step(model, optimizer):
        value, grads = nnx.value_and_grad(lambda model: ((model(ids) - y) ** 2).mean())(model)
        optimizer.update(model, grads)
        return value

    values = [float(step(model, optimizer)) for _ in range(20)]
    assert values[-1] < 0.5 * values[0]
    assert engine.step == 20


def test_a_scan_of_steps_and_a_gradient_through_a_scan():
    user = sc.TableConfig(6, 2, initializer=sc.initializers.RowId(), combiner="sum", name="user")
    engine = sc.ShardedEmbedding(sc.FeatureConfig(user), sc.optimizers.SGD(1.0))
    lookup, token = sj.lookup(engine), sj.token(engine)
    ids = jnp.array([[[1]], [[1]], [[4]]])

    @jax.jit
    def steps(token):
        def body(token, ids):
            return token, jax.value_and_grad(lambda token: lookup(ids, token).sum())(token)[0]

        return jax.lax.scan(body, token, ids)[1]

    assert steps(token).tolist() == [2, 0, 8]
    assert rows(engine)[:, 0].tolist() == [0, -1, 2, 3, 3, 5]
    assert (engine.step, engine.in_flight) == (3, 0)

    @jax.jit
    def through(token):
        def body(total, ids):
            return total + lookup(ids, token).sum(), None

        return jax.lax.scan(body, 0.0, ids)[0]

    value, _ = jax.value_and_grad(through)(token)  # all forwards, then all backwards
    assert float(value) == -2 - 2 + 6
    assert rows(engine)[:, 0].tolist() == [0, -3, 2, 3, 2, 5]
    assert (engine.step, engine.in_flight) == (6, 0)


def test_two_lookups_of_one_loss_are_two_steps():
    engine = make(sc.optimizers.SGD(1.0))
    lookup, token = sj.lookup(engine), sj.token(engine)
    (features, _), (others, _) = batches(2)

    @jax.jit
    @jax.grad
    def learn(token):
        return (lookup(features, token)["clicks"] * lookup(others, token)["clicks"]).sum()

    learn(token)
    jax.effects_barrier()
    assert (engine.step, engine.in_flight, engine.metrics()["lookups"]) == (2, 0, 2)


def test_forwards_without_a_backward_are_dropped_from_the_oldest_on():
    engine = make()
    lookup, token = sj.lookup(engine, in_flight=2), sj.token(engine)
    features, _ = next(batches(1))
    backward = []
    for _ in range(3):
        _, back = jax.vjp(lambda token: lookup(features, token)["clicks"].sum(), token)
        backward.append(back)
    assert engine.in_flight == 2
    told = (
        "backward came for a lookup that does not wait for it: either it came before, or more "
        "than 2 lookups waited and this was the oldest; look the batch up again, or give "
        "shardcore.jax.lookup a larger in_flight="
    )
    with pytest.raises(ShardcoreRuntimeError) as raised:
        backward[0](1.0)
    assert str(raised.value) == told
    backward[2](1.0)
    backward[1](1.0)
    assert (engine.step, engine.in_flight) == (2, 0)
    with pytest.raises(ShardcoreRuntimeError) as raised:
        backward[1](1.0)
    assert str(raised.value) == told
    assert engine.step == 2


@pytest.mark.parametrize("compiled", [False, True])
def test_a_lookup_that_the_loss_leaves_out_waits_for_nothing_after_its_backward(compiled):
    engine = make()
    lookup, token = sj.lookup(engine), sj.token(engine)
    features, _ = next(batches(1))

    def loss(token):
        lookup(features, token)
        return lookup(features, token)["clicks"].sum() + 0.0 * token

    learn = jax.grad(loss)
    (jax.jit(learn) if compiled else learn)(token)
    jax.effects_barrier()
    assert engine.step == 1
    assert engine.in_flight <= 1  # the one that was left out, of which JAX asks no backward
    assert len(lookup._waiting) == engine.in_flight


def test_a_backward_that_is_refused_leaves_rows_and_no_lookup():
    engine = make()
    lookup, token = sj.lookup(engine), sj.token(engine)
    features, _ = next(batches(1))
    lookup(features)
    before = rows(engine)

    @jax.jit
    @jax.grad
    def learn(token, factor):
        return (factor * lookup(features, token)["clicks"]).sum()

    with pytest.raises(jax.errors.JaxRuntimeError, match=r"gradients\['clicks'\] must be finite"):
        jax.block_until_ready(learn(token, jnp.nan))
    jax.effects_barrier()
    assert (engine.step, engine.in_flight) == (0, 0)
    assert np.array_equal(rows(engine), before)
    learn(token, 1.0)
    jax.effects_barrier()
    assert (engine.step, engine.in_flight) == (1, 0)


def test_an_engine_goes_with_the_last_lookup_of_it():
    engine = make()
    lookup, token = sj.lookup(engine), sj.token(engine)
    features, _ = next(batches(1))

    def loss(token, lookup):
        return lookup(features, token)["clicks"].sum()

    jax.grad(partial(loss, lookup=lookup))(token)
    known = weakref.ref(engine)
    del engine, lookup
    gc.collect()
    assert known() is None


def test_what_is_given_outside_jit_is_not_copied(monkeypatch):
    engine = make()
    lookup = sj.lookup(engine)
    features, _ = next(batches(1))
    seen = []
    call = sc.ShardedEmbedding.__call__

    def recording(self, features, weights=None):
        found = call(self, features, weights)
        seen.append((features["clicks"], found["clicks"]))
        return found

    monkeypatch.setattr(sc.ShardedEmbedding, "__call__", recording)
    ids = jnp.asarray(features["clicks"])
    lookup({**features, "clicks": ids})
    assert np.shares_memory(seen[0][0], np.asarray(ids))

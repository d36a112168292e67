"""Mistakes, and what each prints: in the caller's line, while the program is traced, or later."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

from jax import numpy as jnp  # noqa: E402

import shardcore as sc  # noqa: E402
import shardcore.jax as sj  # noqa: E402
from shardcore.errors import (  # noqa: E402
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
    UnavailableError,
)

IDS = jnp.array([[1, 2], [2, 4]])
ERRORS = (sc.ShardcoreError, jax.errors.JaxRuntimeError, TypeError)


def make(**options):
    table = sc.TableConfig(
        options.pop("rows", 6), 2, combiner="sum", name="t", dtype=options.pop("dtype", "float32")
    )
    options = {"optimizer": sc.optimizers.SGD(0.5), **options}
    return sc.ShardedEmbedding({"a": sc.FeatureConfig(table)}, **options)


ENGINE = make()
LOOKUP, TOKEN = sj.lookup(ENGINE), sj.token(ENGINE)
FORMS = (
    "an array of shape (batch,) or (batch, ids per bag), a sc.Ragged "
    "or a tuple (values, row_splits)"
)
RESHAPED = sc.Ragged([1, 2], [0, 2])
object.__setattr__(RESHAPED, "row_splits", np.zeros((2, 1), np.int64))


def loss(token, ids, weights=None):
    return LOOKUP({"a": ids}, token, {"a": weights})["a"].sum()


TRACED = [
    (lambda: LOOKUP({"b": IDS}), ValueError, "features['a'] is missing: it is configured"),
    (lambda: LOOKUP(IDS), TypeError, "features must be a dict, as it is configured, got "),
    (
        lambda: loss(TOKEN, IDS * 1.0),
        TypeError,
        "features['a']: ids must be integers, got dtype float32",
    ),
    (
        lambda: loss(TOKEN, IDS == 1),
        TypeError,
        "features['a']: ids must be integers, got dtype bool",
    ),
    (
        lambda: loss(TOKEN, (IDS[0] * 1.0, np.array([0, 2]))),
        TypeError,
        "features['a']: values must be integers, got dtype float32",
    ),
    (
        lambda: loss(TOKEN, (IDS[0], np.array([0.0, 2.0]))),
        TypeError,
        "features['a']: row_splits must be integers, got dtype float64",
    ),
    (
        lambda: loss(TOKEN, (IDS, np.array([0, 2]))),
        ValueError,
        "features['a']: values must have rank 1, got shape (2, 2)",
    ),
    (
        lambda: loss(TOKEN, RESHAPED),
        ValueError,
        "features['a']: row_splits must have rank 1, got shape (2, 1)",
    ),
    (
        lambda: loss(TOKEN, ([1, 2], np.array([0, 2]))),
        TypeError,
        "features['a']: values must be an array, got [1, 2]",
    ),
    (
        lambda: loss(TOKEN, (IDS[0], np.zeros(0, np.int64))),
        ValueError,
        "features['a']: row_splits must hold at least one entry, the leading 0",
    ),
    (
        lambda: loss(TOKEN, [[1, 2], [4]]),
        TypeError,
        f"features['a']: ids must be {FORMS}, got list; "
        "sc.Ragged.from_lists makes one of a list of bags",
    ),
    (
        lambda: loss(TOKEN, jnp.array(1)),
        TypeError,
        f"features['a']: ids must be {FORMS}, got a scalar",
    ),
    (
        lambda: loss(TOKEN, IDS, [[1.0, 2.0], [3.0, 4.0]]),
        TypeError,
        "weights['a']: weights must be None, a sc.Ragged of floats, or an array aligned with the "
        "ids, got list",
    ),
    (
        lambda: LOOKUP({"a": IDS}, None, {"b": IDS}),
        ValueError,
        "weights['a'] is missing: it is configured",
    ),
    (
        lambda: loss(0.0, IDS),
        TypeError,
        "token must be what shardcore.jax.token(engine) returned, a float of shape (), got 0.0",
    ),
    (
        lambda: loss(jnp.zeros(2), IDS),
        TypeError,
        "token must be what shardcore.jax.token(engine) returned, a float of shape (), got "
        "float32 of shape (2,)",
    ),
    (
        lambda: loss(jnp.array(3), IDS),
        TypeError,
        "token must be what shardcore.jax.token(engine) returned, a float of shape (), got "
        "int32 of shape ()",
    ),
    (
        lambda: jax.grad(lambda w: loss(TOKEN, IDS, w))(jnp.ones((2, 2))),
        ValueError,
        "weights['a'] is differentiated, and the token is not: gradients of weights come with "
        "the update; give the token too, among the parameters that are differentiated, or "
        "jax.lax.stop_gradient of the weights",
    ),
    (
        lambda: jax.grad(lambda w: loss(None, IDS, w))(jnp.ones((2, 2))),
        ValueError,
        "weights['a'] is differentiated, and the token is not: gradients of weights come with "
        "the update; give the token too, among the parameters that are differentiated, or "
        "jax.lax.stop_gradient of the weights",
    ),
]


@pytest.mark.parametrize("at", range(len(TRACED)))
@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_known_before_arrays_have_values_raises_in_the_callers_line(at, compiled):
    call, kind, told = TRACED[at]
    before = ENGINE.metrics()
    with pytest.raises(sc.ShardcoreError, match=re.escape(told)) as raised:
        (jax.jit(call) if compiled else call)()
    assert isinstance(raised.value, kind)
    assert str(raised.value).startswith(told)
    assert ENGINE.metrics() == before


MAPPED = (
    "shardcore.jax.lookup cannot be mapped by jax.vmap, nor by what uses it, as jax.jacrev "
    "does: look the whole batch up, ids of shape (batch, ids per bag), and map what follows"
)
ONCE = (
    "shardcore.jax.lookup has first derivatives only: its backward updates rows, which cannot "
    "be differentiated; where a loss is made of gradients, look up without the token"
)


def of_gradients(token, w):
    gradient = jax.grad(lambda both: ((LOOKUP({"a": IDS}, both[0])["a"] @ both[1]) ** 2).sum())
    return gradient((token, w))[1].sum()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: jax.vmap(loss, (None, 0))(TOKEN, IDS), MAPPED),
        (lambda: jax.jit(jax.vmap(loss, (None, 0)))(TOKEN, IDS), MAPPED),
        (lambda: jax.vmap(jax.jit(loss), (None, 0))(TOKEN, IDS), MAPPED),
        (lambda: jax.vmap(jax.grad(loss), (None, 0))(TOKEN, IDS), MAPPED),
        (lambda: jax.jacrev(lambda token: LOOKUP({"a": IDS}, token)["a"])(TOKEN), MAPPED),
        (lambda: jax.grad(of_gradients, 1)(TOKEN, jnp.ones(2)), ONCE),
        (lambda: jax.jit(jax.grad(of_gradients, 1))(TOKEN, jnp.ones(2)), ONCE),
    ],
)
def test_maps_and_second_derivatives_are_refused(call, told):
    before = ENGINE.step
    with pytest.raises(ShardcoreValueError) as raised:
        call()
    assert str(raised.value) == told
    assert ENGINE.step == before


def test_a_loss_of_gradients_looks_up_without_the_token():
    def of_gradients(w):
        gradient = jax.grad(lambda w: ((LOOKUP({"a": IDS})["a"] @ w) ** 2).sum())
        return gradient(w).sum()

    found = LOOKUP({"a": IDS})["a"]
    expected = 2 * (found.T @ found).sum(1)
    assert np.allclose(jax.jit(jax.grad(of_gradients))(jnp.ones(2)), expected)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: loss(TOKEN, IDS + 3),
            "features['a']: ids[3] = 7 is outside table 't': must be in [0, 6)",
        ),
        (
            lambda: jax.grad(loss)(TOKEN, IDS + 3),
            "features['a']: ids[3] = 7 is outside table 't': must be in [0, 6)",
        ),
        (
            lambda: loss(TOKEN, (IDS[0], jnp.array([1, 2]))),
            "features['a']: row_splits must start at 0, got row_splits[0] = 1",
        ),
        (
            lambda: loss(TOKEN, IDS, jnp.ones(3)),
            "weights['a']: weights must have a weight per id, shape (4,) or (2, 2), got shape (3,)",
        ),
        (
            lambda: loss(TOKEN, sc.Ragged([1, 2], [0, 2], [1.0, 1.0]), jnp.ones(2)),
            "weights['a']: the ids have weights of their own (Ragged.weights or the data of a "
            "scipy.sparse array); give None here",
        ),
    ],
)
def test_what_arrays_hold_is_checked_by_the_engine_as_the_program_runs(call, told):
    waiting = ENGINE.in_flight
    with pytest.raises(sc.ShardcoreError) as raised:
        call()
    assert str(raised.value) == told
    with pytest.raises(jax.errors.JaxRuntimeError) as compiled:
        jax.block_until_ready(jax.jit(call)())
    assert str(compiled.value).rstrip().endswith(f"Error: {told}")
    assert ENGINE.in_flight == waiting
    assert float(jax.jit(loss)(TOKEN, IDS)) == float(loss(TOKEN, IDS))  # and goes on


def test_a_closed_engine():
    engine = make()
    lookup = sj.lookup(engine)
    compiled = jax.jit(lookup)
    compiled({"a": IDS})
    engine.close()
    told = "a lookup came after close: the tables are gone"
    with pytest.raises(ShardcoreRuntimeError, match=re.escape(told)):
        lookup({"a": IDS})
    with pytest.raises(jax.errors.JaxRuntimeError, match=re.escape(told)):
        jax.block_until_ready(compiled({"a": IDS}))


def test_an_error_of_an_engine_that_is_only_read_is_of_one_program():
    table = sc.TableConfig(6, 2, combiner="sum", name="t")
    lookup = sj.lookup(sc.ShardedEmbedding(sc.FeatureConfig(table)))
    compiled = jax.jit(lookup)
    told = "features: ids[0] = 7 is outside table 't': must be in [0, 6)"
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError) as raised:
            jax.block_until_ready(compiled(jnp.array([7])))
        assert str(raised.value).rstrip().splitlines()[-1] == f"ShardcoreIndexError: {told}"
        assert compiled(jnp.array([1])).tolist() == lookup(jnp.array([1])).tolist()


def test_an_error_behind_a_thread_leaves_other_threads_and_the_engine():
    lookup = sj.lookup(make())
    compiled = jax.jit(lookup)
    told = "features['a']: ids[0] = 7 is outside table 't': must be in [0, 6)"

    @jax.jit
    def late_ids(much):
        for _ in range(6):
            much = jnp.tanh(much @ much)
        return jnp.array([7]) + (0 * much[0, 0]).astype(int)

    def errors():
        for ids in (late_ids(jnp.ones((1000, 1000))), jnp.array([1])):
            try:
                jax.block_until_ready(compiled({"a": ids}))
            except jax.errors.JaxRuntimeError as error:
                yield str(error).rstrip().splitlines()[-1]

    expected = compiled({"a": jnp.array([1])})["a"].tolist()
    jax.block_until_ready(late_ids(jnp.ones((1000, 1000))))
    with ThreadPoolExecutor(1) as other:
        found = other.submit(lambda: list(errors())).result()
    assert found[0] == f"ShardcoreIndexError: {told}"
    assert set(found) == {found[0]}  # JAX says it again in that thread, where it ran behind it
    assert compiled({"a": jnp.array([1])})["a"].tolist() == expected


def test_an_error_behind_a_thread_is_taken_and_the_thread_goes_on():
    engine = make()
    lookup, own = sj.lookup(engine), sj.token(engine)

    @jax.jit
    @jax.grad
    def learn(own, ids):
        return lookup({"a": ids}, own)["a"].sum()

    @jax.jit
    def late(much, ids):
        for _ in range(6):
            much = jnp.tanh(much @ much)
        return ids + (0 * much[0, 0]).astype(int)

    def learns(ids):
        jax.block_until_ready(learn(own, late(jnp.ones((1000, 1000)), jnp.array(ids))))
        jax.effects_barrier()

    def in_a_thread():
        learns([1])
        assert sj.take_error() is None
        for step in (1, 2):
            with pytest.raises(jax.errors.JaxRuntimeError):
                learns([7])
            assert engine.step == step
            error = sj.take_error()  # none where the program ran in the thread itself
            assert error is None or "ids[0] = 7 is outside table 't'" in str(error)
            assert sj.take_error() is None
            learns([1])
            assert engine.step == step + 1
        return error

    with ThreadPoolExecutor(1) as other:
        assert other.submit(in_a_thread).result() is not None


def test_an_error_that_jax_keeps_elsewhere_is_told(monkeypatch):
    def fails():
        raise jax.errors.JaxRuntimeError("of a program")

    monkeypatch.setattr(jax, "effects_barrier", fails)
    monkeypatch.delattr("jax._src.dispatch.runtime_tokens")
    told = (
        f"jax {jax.__version__} keeps the errors of a thread where shardcore does not find them: "
        "go on in another thread"
    )
    with pytest.raises(UnavailableError, match=f"^{re.escape(told)}$"):
        sj.take_error()


@pytest.mark.parametrize("function", ["lookup", "token"])
def test_an_engine_is_needed_whose_tables_are_on_the_host(function):
    call = getattr(sj, function)
    with pytest.raises(ShardcoreTypeError) as raised:
        call("engine")
    assert str(raised.value) == "engine must be a ShardedEmbedding, got 'engine'"
    with pytest.raises(ShardcoreValueError) as raised:
        call(make(backend="pjrt"))
    assert str(raised.value) == (
        f"shardcore.jax.{function} is for tables in the memory of the host, and those of backend "
        "'pjrt' are on its devices: call engine.lookup and the handle's apply_gradients outside "
        "jax.jit, which take and give arrays that stay there"
    )


def test_optimizers_are_needed_to_learn():
    with pytest.raises(ShardcoreRuntimeError) as raised:
        sj.token(make(optimizer=None))
    assert str(raised.value) == (
        "shardcore.jax.token needs a table with an optimizer, and none has one: give the engine "
        "optimizer=, or look up without a token"
    )
    frozen = sc.TableConfig(6, 2, name="frozen")
    learning = sc.TableConfig(6, 2, name="learning", optimizer=sc.optimizers.SGD(0.1))
    engine = sc.ShardedEmbedding([sc.FeatureConfig(frozen), sc.FeatureConfig(learning)])
    lookup, token = sj.lookup(engine), sj.token(engine)
    with pytest.raises(ShardcoreValueError) as raised:
        jax.grad(lambda both: lookup([IDS, IDS], both[0], [both[1], None])[0].sum())(
            (token, jnp.ones((2, 2)))
        )
    assert str(raised.value) == (
        "weights[0] is differentiated, and table 'frozen' has no optimizer: gradients of weights "
        "come with the update; give jax.lax.stop_gradient of the weights"
    )
    assert (engine.step, engine.in_flight) == (0, 0)


def test_what_needs_64_bits_says_so():
    lookup = sj.lookup(make(dtype="float64"))
    with pytest.raises(ShardcoreValueError) as raised:
        jax.jit(lookup)({"a": IDS})
    assert str(raised.value) == (
        "features['a']: activations of table 't' are float64, which JAX has only after "
        "jax.config.update('jax_enable_x64', True)"
    )
    lookup = sj.lookup(make(rows=(1 << 31) + 1))
    for ids in (IDS, (IDS[0], jnp.array([0, 2]))):
        with pytest.raises(ShardcoreValueError) as raised:
            jax.eval_shape(partial(lookup, {"a": ids}))  # tables of this size are not made here
        assert str(raised.value) == (
            "features['a']: ids of int32 cannot name all of the 2147483649 rows of table 't', and "
            "JAX cuts others to it unless jax.config.update('jax_enable_x64', True)"
        )


def test_ids_that_jax_would_cut_are_refused():
    for ids in (np.array([[1], [2**31]]), (np.array([1, -(2**31) - 1]), np.array([0, 2]))):
        cut = np.ravel(ids[0] if type(ids) is tuple else ids)[1]
        for call in (loss, jax.jit(lambda token, ids=ids: loss(token, ids))):
            with pytest.raises(ShardcoreValueError) as raised:
                call(TOKEN, ids) if call is loss else call(TOKEN)
            assert str(raised.value) == (
                f"features['a']: ids[1] = {cut} does not fit int32, to which JAX cuts ids unless "
                "jax.config.update('jax_enable_x64', True)"
            )


@pytest.mark.parametrize("given", [0, 1.5])
def test_in_flight_is_a_count(given):
    with pytest.raises(sc.ShardcoreError, match="in_flight must be"):
        sj.lookup(ENGINE, in_flight=given)

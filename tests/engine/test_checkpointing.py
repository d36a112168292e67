"""Engines in checkpoints: any backend, host count and layout restores what any other saved."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest
from shardcore_cpu.backend import CpuBackend
from shardcore_sim.backend import SimBackend

import shardcore as sc
from shardcore.errors import (
    CorruptCheckpointError,
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.features.config import FeatureConfig, TableConfig

ENGINES = [
    pytest.param({"backend": "sim", "backend_options": {"hosts": 3}}, "div", id="sim3-div"),
    pytest.param({"backend": "sim", "backend_options": {"hosts": 1}}, "mod", id="sim1-mod"),
    pytest.param({"backend": "sim", "backend_options": {"hosts": 11}}, "mod", id="sim11-mod"),
    pytest.param({"backend": "cpu"}, "div", id="cpu"),
    pytest.param({"backend": "sim", "backend_options": {"hosts": 3}}, (250, 0), id="sim3-ranges"),
]


@dataclass(frozen=True, eq=False, repr=False)
class Counting(sc.Optimizer):
    """Depends on the step, and has a row slot of a dtype of its own."""

    hyper_names = ()
    slots = (sc.SlotSpec("visits", "row", dtype="float64", fill=3.0),)

    def update(self, grad, rows, slots, hyper, step, row_ids):
        return rows - grad / step, {"visits": slots["visits"] + 1}


def cut(layout, size):
    """A layout; or, of row counts for all hosts but the last, those that a table of `size` has."""
    if isinstance(layout, str):
        return layout
    borders = np.minimum(np.cumsum([0, *layout]), size - 1)
    return np.diff([*borders, size])


def make_engine(where, layout="div", seed=0, optimizer="default", user="user", size=9):
    item = TableConfig(301, 6, name="item", layout=cut(layout, 301), dtype="float16")
    user = TableConfig(size, 3, name=user, layout=cut(layout, size),
                       optimizer=Counting() if optimizer == "default" else None)  # fmt: skip
    if optimizer == "default":
        optimizer = sc.optimizers.Adagrad(learning_rate=0.1)
    config = {"i": FeatureConfig(item), "u": FeatureConfig(user)}
    return sc.ShardedEmbedding(config, optimizer=optimizer, seed=seed, **where)


def train(e, steps, first=0):
    for step in range(first, first + steps):
        rng = np.random.default_rng(step)
        features = {"i": rng.integers(0, 301, (20, 3)), "u": rng.integers(0, 9, (20, 2))}
        e.enqueue(features)
        x = e.dequeue()
        e.apply_gradients({name: rng.normal(size=a.shape) for name, a in x.items()})


def contents(e, slots=True):
    found = {name: np.asarray(table).tobytes() for name, table in e.tables.items()}
    if slots:
        for name, group in e.slots.items():
            for slot, values in group.items():
                found[f"{name}/{slot}"] = np.asarray(values).tobytes()
    return found


@pytest.fixture
def saved(tmp_path):
    """A trained engine of four hosts and the step it was saved as."""
    e = make_engine({"backend": "sim", "backend_options": {"hosts": 4}}, "mod", seed=1)
    train(e, 3)
    return e, sc.Checkpoint(embedding=e).save(tmp_path / "root", 30)


@pytest.mark.parametrize(("where", "layout"), ENGINES)
def test_row_counts_are_not_saved(tmp_path, where, layout):
    source = make_engine({"backend": "sim", "backend_options": {"hosts": 4}}, (0, 200, 7), seed=1)
    train(source, 2)
    path = sc.Checkpoint(embedding=source).save(tmp_path / "root", 2)
    e = make_engine(where, layout, seed=2)
    sc.Checkpoint(embedding=e).restore(path)
    assert contents(e) == contents(source)
    train(e, 1, 2)
    train(source, 1, 2)
    assert contents(e) == contents(source)


@pytest.mark.parametrize(("where", "layout"), ENGINES)
@pytest.mark.parametrize("live", [False, True], ids=["unbuilt", "live"])
def test_any_engine_restores_what_another_saved(saved, where, layout, live):
    source, path = saved
    e = make_engine(where, layout, seed=2)
    if live:
        train(e, 1)
        assert contents(e) != contents(source)
    checkpoint = sc.Checkpoint(embedding=e)
    assert checkpoint.restore(path) == 30
    assert checkpoint.skipped == {}
    assert "; built" in repr(e) or repr(e).endswith("built)")
    assert contents(e) == contents(source)
    assert e.step == source.step == 3
    train(source, 2, first=3)
    train(e, 2, first=3)
    assert contents(e) == contents(source)
    assert e.step == 5


def make_chance(where, seed, tables=("a", "b")):
    """An engine that rounds by chance, and whose slots begin from random numbers."""
    optimizer = sc.optimizers.Adagrad(
        0.1,
        slot_initial_values={"accumulators": sc.initializers.Uniform(0.25, 0.5)},
        stochastic_rounding=True,
    )
    config = {
        name: FeatureConfig(TableConfig(60, 5, name=name, dtype="float16", combiner="sum"))
        for name in tables
    }
    return sc.ShardedEmbedding(config, optimizer=optimizer, seed=seed, **where)


def train_chance(e, steps, first=0, tables=("a", "b")):
    for step in range(first, first + steps):
        rng = np.random.default_rng(step)
        ids, gradients = rng.integers(0, 60, (2, 30, 3)), rng.normal(size=(2, 30, 5))
        e.enqueue({name: ids[at] for at, name in enumerate(tables)})
        e.dequeue()
        e.apply_gradients({name: gradients[at] for at, name in enumerate(tables)})


PLACES = [pytest.param(where, id=name) for name, where in {
    "cpu": {"backend": "cpu"},
    "sim": {"backend": "sim", "backend_options": {"hosts": 3}},
    "pipeline": {"backend": "cpu", "pipeline": True},
}.items()]  # fmt: skip
LIVE = pytest.mark.parametrize("live", [False, True], ids=["unbuilt", "live"])


@pytest.mark.parametrize("where", PLACES)
@LIVE
def test_a_restored_run_takes_the_chances_of_the_saved_one(tmp_path, where, live):
    source = make_chance({"backend": "cpu"}, seed=11)
    train_chance(source, 3)
    sc.Checkpoint(e=source).save(tmp_path, 3)
    e = make_chance(where, seed=-5)
    if live:
        train_chance(e, 1)
    assert e.config()["seed"] == -5
    sc.Checkpoint(e=e).restore(tmp_path)
    assert e.config()["seed"] == 11
    assert e.config()["tables"] == source.config()["tables"]
    train_chance(source, 4, first=3)
    train_chance(e, 4, first=3)
    assert contents(e) == contents(source)
    assert e.step == source.step == 7
    # what is saved now says so too
    sc.Checkpoint(e=e).save(tmp_path, 7)
    third = make_chance({"backend": "cpu"}, seed=1)
    sc.Checkpoint(e=third).restore(tmp_path)
    assert third.config()["seed"] == 11


@pytest.mark.parametrize("where", PLACES)
@LIVE
def test_slots_that_begin_anew_are_those_of_the_saved_run(tmp_path, where, live):
    source = make_chance({"backend": "cpu"}, seed=11)
    source.build()
    first = contents(source)
    train_chance(source, 3)
    sc.Checkpoint(e=source).save(tmp_path, 3)
    e = make_chance(where, seed=2)
    if live:
        train_chance(e, 1)
    sc.Checkpoint(e=e).restore(tmp_path, slots="reset")
    assert e.config()["seed"] == 11
    now = contents(e)
    for name in ("a/accumulators", "b/accumulators"):
        assert now[name] == first[name] != contents(source)[name]
    # and both go on alike from there
    again = make_chance({"backend": "cpu"}, seed=3)
    sc.Checkpoint(e=again).restore(tmp_path, slots="reset")
    train_chance(e, 2, first=3)
    train_chance(again, 2, first=3)
    assert contents(e) == contents(again)


@LIVE
def test_an_engine_with_some_of_the_saved_tables_takes_their_chances(tmp_path, live):
    source = make_chance({"backend": "cpu"}, seed=11)
    train_chance(source, 3)
    sc.Checkpoint(e=source).save(tmp_path, 3)
    e = make_chance({"backend": "cpu"}, seed=2, tables=("a",))
    if live:
        train_chance(e, 1, tables=("a",))
    sc.Checkpoint(e=e).restore(tmp_path)
    train_chance(source, 2, first=3)
    train_chance(e, 2, first=3, tables=("a",))
    for name in ("a", "a/accumulators"):
        assert contents(e)[name] == contents(source)[name]


def test_a_restore_that_is_refused_leaves_the_seed(tmp_path):
    source = make_chance({"backend": "cpu"}, seed=11)
    train_chance(source, 1)
    sc.Checkpoint(e=source).save(tmp_path, 1)
    e, other = make_chance({"backend": "cpu"}, seed=2), np.zeros(3)
    e.build()
    with pytest.raises(ShardcoreValueError):
        sc.Checkpoint(e=e, other=other).restore(tmp_path)
    assert e.config()["seed"] == 2


def test_saving_again_what_was_restored_gives_the_same(saved, tmp_path):
    source, path = saved
    e = make_engine({"backend": "cpu"})
    sc.Checkpoint(embedding=e).restore(path.parent)
    again = sc.Checkpoint(embedding=e).save(tmp_path / "again", 31)
    third = make_engine({"backend": "sim", "backend_options": {"hosts": 2}}, "mod")
    assert sc.Checkpoint(embedding=third).restore(again) == 31
    assert contents(third) == contents(source)


def test_an_engine_is_saved_as_it_was(tmp_path):
    e = make_engine({"backend": "cpu"})
    e.build()
    e.enqueue({"i": [[1]], "u": [[1]]})
    before = contents(e)
    path = sc.Checkpoint(embedding=e).save(tmp_path, 0)
    e.dequeue()
    e.apply_gradients({"i": np.ones((1, 6)), "u": np.ones((1, 3))})
    assert contents(e) != before
    assert sc.Checkpoint(embedding=e).restore(path) == 0
    assert contents(e) == before
    assert e.step == 0


@pytest.mark.parametrize("live", [False, True], ids=["unbuilt", "live"])
@pytest.mark.parametrize("optimizer", [sc.optimizers.SGD(0.5), sc.optimizers.Adagrad(0.5, 0.25)])
def test_slots_can_begin_anew(saved, live, optimizer):
    source, path = saved
    e = make_engine({"backend": "sim", "backend_options": {"hosts": 2}}, optimizer=optimizer)
    if live:
        train(e, 1)
    checkpoint = sc.Checkpoint(embedding=e)
    assert checkpoint.restore(path, slots="reset") == 30
    assert contents(e, slots=False) == contents(source, slots=False)
    assert checkpoint.skipped == {"embedding": ("item/accumulators", "user/visits")}
    for slots in e.slots.values():
        for values in slots.values():
            np.testing.assert_array_equal(values, np.full(values.shape, 0.25))
    assert e.step == 3


@pytest.mark.parametrize("where", ["cpu", "sim"])
@pytest.mark.parametrize("live", [False, True], ids=["unbuilt", "live"])
def test_tables_that_are_alike_get_their_own_rows_and_slots(tmp_path, where, live):
    """Equal in shape, dtype and optimizer: only their names tell them, and their slots, apart."""

    def make(seed):
        tables = [sc.TableConfig(40, 3, name=name) for name in ("one", "two", "three")]
        config = {table.name: FeatureConfig(table) for table in tables}
        return sc.ShardedEmbedding(config, sc.optimizers.Adam(0.1), where, seed=seed)

    def train_alike(e, steps):
        for step in steps:
            rng = np.random.default_rng(step)
            e.enqueue({name: rng.integers(0, 40, (20, 3)) for name in e.tables})
            x = e.dequeue()
            e.apply_gradients({name: rng.normal(size=a.shape) for name, a in x.items()})

    source = make(1)
    source.build()
    train_alike(source, range(3))
    saved = contents(source)
    assert len(set(saved.values())) == len(saved) == 9  # none passes for another one
    path = sc.Checkpoint(embedding=source).save(tmp_path, 1)
    e = make(2)
    if live:
        e.build()
        train_alike(e, range(9, 11))
    sc.Checkpoint(embedding=e).restore(path)
    assert contents(e) == saved
    train_alike(e, range(3, 5))
    train_alike(source, range(3, 5))
    assert contents(e) == contents(source)


@pytest.mark.parametrize("before", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("after", ["float32", "float64", "float16", "bfloat16"])
def test_tables_of_another_dtype_are_refused(tmp_path, before, after):
    def make(dtype):
        e = sc.ShardedEmbedding(FeatureConfig(sc.TableConfig(9, 2, name="t", dtype=dtype)), seed=3)
        e.build()
        return e

    source, e = make(before), make(after)
    path = sc.Checkpoint(embedding=source).save(tmp_path, 1)
    untouched = contents(e)
    if before == after:
        assert sc.Checkpoint(embedding=e).restore(path) == 1
        return
    message = f"tensor 't' was saved as {before} (9, 2), the engine has {after} (9, 2)"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        sc.Checkpoint(embedding=e).restore(path)
    assert contents(e) == untouched


@pytest.mark.parametrize("live", [False, True], ids=["unbuilt", "live"])
@pytest.mark.parametrize(
    ("before", "after", "kind"), [("float32", "float64", "Adagrad"), ("float64", "float32", "FTRL")]
)
def test_slots_of_another_dtype_are_refused(tmp_path, live, before, after, kind):
    def make(dtype):
        optimizer = getattr(sc.optimizers, kind)(0.1, slot_dtype=dtype)
        return sc.ShardedEmbedding(FeatureConfig(sc.TableConfig(9, 2, name="t")), optimizer)

    source = make(before)
    source.build()
    path = sc.Checkpoint(embedding=source).save(tmp_path, 1)
    e = make(after)
    if live:
        e.build()
        untouched = contents(e)
    message = f"tensor 't/accumulators' was saved as {before} (9, 2), the engine has {after} (9, 2)"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        sc.Checkpoint(embedding=e).restore(path)
    if live:
        assert contents(e) == untouched
    assert sc.Checkpoint(embedding=e).restore(path, slots="reset") == 1


def test_another_optimizer_with_slots_of_the_same_names_is_refused(tmp_path):
    def make(optimizer):
        e = sc.ShardedEmbedding(FeatureConfig(sc.TableConfig(9, 2, name="t")), optimizer)
        e.build()
        return e

    lamb = make(sc.optimizers.LAMB(0.1))
    path = sc.Checkpoint(embedding=make(sc.optimizers.Adam(0.1))).save(tmp_path, 1)
    before = contents(lamb)
    assert [*lamb.slots["t"]] == ["momenta", "velocities"]
    message = (
        "table 't' was saved with optimizer Adam, the engine has LAMB; "
        "restore with slots='reset' to begin with fresh slots"
    )
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        sc.Checkpoint(embedding=lamb).restore(path)
    assert contents(lamb) == before


@pytest.mark.parametrize("pipeline", [False, True])
def test_restored_steps_are_counted_as_applied(saved, pipeline):
    """An update that fails afterwards, and closing, goes back to the steps that were applied."""

    class Failing(CpuBackend):
        fails = False

        def apply(self, updates):
            if self.fails:
                raise OSError("no update today")
            super().apply(updates)

    _, path = saved
    backend = Failing()
    e = make_engine({"backend": backend, "pipeline": pipeline})
    sc.Checkpoint(embedding=e).restore(path)
    train(e, 1)
    assert e.step == 4
    if pipeline:
        np.asarray(e.tables["user"])  # waits for the update
        backend.fails = True
        with pytest.raises(ShardcoreRuntimeError, match="no update today"):
            train(e, 2)
        backend.fails = False
        assert e.step == 4
        train(e, 1)
        np.asarray(e.tables["user"])
    e.close()
    assert e.step == 4 + pipeline


def test_slots_of_a_large_live_table_begin_anew_to_the_last_row(tmp_path):
    """They are written in blocks of 65,536 rows."""
    rows = 2 * 65_536 + 3
    table = sc.TableConfig(rows, 1, name="t", initializer=sc.initializers.Zeros())
    e = sc.ShardedEmbedding(FeatureConfig(table), sc.optimizers.Adagrad(0.1, 0.5))
    ids = np.array([0, 65_535, 65_536, 2 * 65_536 - 1, 2 * 65_536, rows - 1])
    e.enqueue(ids)
    e.dequeue()
    e.apply_gradients(np.ones((ids.size, 1)))
    path = sc.Checkpoint(embedding=e).save(tmp_path, 1)
    assert (np.asarray(e.slots["t"]["accumulators"])[ids] == 1.5).all()
    sc.Checkpoint(embedding=e).restore(path, slots="reset")
    assert (np.asarray(e.slots["t"]["accumulators"]) == 0.5).all()
    assert (np.asarray(e.tables["t"])[ids] != 0).all()


@pytest.mark.parametrize("live", [False, True], ids=["unbuilt", "live"])
def test_another_optimizer_is_refused(saved, live):
    _, path = saved
    e = make_engine({"backend": "cpu"}, optimizer=sc.optimizers.SGD(0.5))
    if live:
        train(e, 1)
        before = contents(e)
    with pytest.raises(ShardcoreValueError) as info:
        sc.Checkpoint(embedding=e).restore(path)
    assert str(info.value) == (
        "table 'item' was saved with optimizer Adagrad, the engine has SGD; "
        "restore with slots='reset' to begin with fresh slots"
    )
    if live:
        assert contents(e) == before
        assert e.step == 1
    else:
        assert repr(e).endswith("not built)")


@pytest.mark.parametrize("live", [False, True], ids=["unbuilt", "live"])
def test_a_serving_engine_skips_slots_and_says_so(saved, live):
    source, path = saved
    e = make_engine({"backend": "cpu"}, optimizer=None)
    if live:
        e.build()
    checkpoint = sc.Checkpoint(embedding=e)
    checkpoint.restore(path)
    assert checkpoint.skipped == {"embedding": ("item/accumulators", "user/visits")}
    assert contents(e) == contents(source, slots=False)
    features = {"i": [[300, 4]], "u": [[8]]}
    assert e(features)["i"].tobytes() == source(features)["i"].tobytes()


def test_a_table_more_in_the_checkpoint_is_skipped(saved):
    source, path = saved
    item = TableConfig(301, 6, name="item", dtype="float16")
    e = sc.ShardedEmbedding(FeatureConfig(item), sc.optimizers.Adagrad(0.1))
    checkpoint = sc.Checkpoint(embedding=e)
    checkpoint.restore(path)
    assert checkpoint.skipped == {"embedding": ("user", "user/visits")}
    assert contents(e) == {k: v for k, v in contents(source).items() if k.startswith("item")}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"user": "person"},
                     "the checkpoint has no table 'person'; it has 'item', 'user'", id="missing"),
        pytest.param({"size": 10},
                     "tensor 'user' was saved as float32 (9, 3), the engine has float32 (10, 3)",
                     id="shape"),
        pytest.param({"user": None}, "the checkpoint has no table 'table_1'; it has 'item', 'user'",
                     id="automatic"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_builds_nothing(saved, options, message):
    _, path = saved
    backend = SimBackend(hosts=2)
    e = make_engine({"backend": backend}, **options)
    with pytest.raises(ShardcoreValueError) as info:
        sc.Checkpoint(embedding=e).restore(path)
    assert str(info.value) == message
    assert backend.specs == {}
    assert repr(e).endswith("not built)")
    e.build()
    assert len(backend.specs) == 2


def unnamed(sizes, backend="cpu"):
    tables = [FeatureConfig(TableConfig(size, 2)) for size in sizes]
    return sc.ShardedEmbedding(tables, sc.optimizers.Adagrad(), backend)


def test_automatic_names_hold_for_the_same_set_of_tables(tmp_path):
    source = unnamed((4, 5, 6))
    source.build()
    path = sc.Checkpoint(embedding=source).save(tmp_path, 1)
    same = unnamed((4, 5, 6), "sim")
    sc.Checkpoint(embedding=same).restore(path)
    assert contents(same) == contents(source)
    fewer = unnamed((4, 5))
    with pytest.raises(ShardcoreValueError) as info:
        sc.Checkpoint(embedding=fewer).restore(path)
    assert str(info.value) == (
        "table 'table_0' has an automatic name, which means nothing to another set of tables: "
        "the checkpoint has 'table_0', 'table_1', 'table_2', the engine 'table_0', 'table_1'; "
        "name the tables"
    )
    assert repr(fewer).endswith("not built)")


@pytest.mark.parametrize("live", [False, True], ids=["unbuilt", "live"])
def test_a_damaged_file_changes_nothing(saved, live):
    _, path = saved
    files = sorted(path.glob("*.safetensors"))
    assert files
    for file in files:
        raw = bytearray(file.read_bytes())
        raw[-3] ^= 4  # in the last tensor of the file
        file.write_bytes(raw)
        backend = SimBackend(hosts=3)
        e = make_engine({"backend": backend})
        if live:
            train(e, 1)
            before = contents(e), e.step, e.metrics()
        with pytest.raises(CorruptCheckpointError):
            sc.Checkpoint(embedding=e).restore(path)
        if live:
            assert (contents(e), e.step, e.metrics()) == before
            train(e, 1)
        else:
            assert backend.specs == {}
            assert repr(e).endswith("not built)")
        raw[-3] ^= 4
        file.write_bytes(raw)
    sc.Checkpoint(embedding=e).restore(path)


@pytest.mark.parametrize("live", [False, True], ids=["unbuilt", "live"])
def test_another_object_that_does_not_fit_keeps_the_engine_as_it_was(tmp_path, live):
    source = make_engine({"backend": "cpu"})
    source.build()
    dense = {"w": np.arange(3.0)}
    path = sc.Checkpoint(embedding=source, dense=dense).save(tmp_path, 2)
    backend = SimBackend(hosts=2)
    e = make_engine({"backend": backend}, seed=9)
    if live:
        e.build()
        before = contents(e)
    target = {"w": np.zeros(3, np.int32)}
    with pytest.raises(ShardcoreTypeError) as info:
        sc.Checkpoint(embedding=e, dense=target).restore(path)
    assert str(info.value) == (
        "object 'dense', tensor 'w' must have the saved dtype float64, got int32"
    )
    if live:
        assert contents(e) == before
    else:
        assert backend.specs == {}
    target = {"w": np.zeros(3)}
    sc.Checkpoint(embedding=e, dense=target).restore(path)
    assert contents(e) == contents(source)
    np.testing.assert_array_equal(target["w"], dense["w"])


def test_an_unbuilt_engine_restores_without_its_initializers(saved):
    source, path = saved

    def never(*_):
        raise AssertionError("the values are overwritten")

    item = TableConfig(301, 6, initializer=never, name="item", dtype="float16")
    e = sc.ShardedEmbedding(FeatureConfig(item))
    sc.Checkpoint(embedding=e).restore(path)
    assert contents(e)["item"] == contents(source)["item"]

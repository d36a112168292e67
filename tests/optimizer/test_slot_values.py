"""What slots begin with: numbers, arrays, initializers, or the rows; on every backend alike."""

from __future__ import annotations

import json
import pickle
import re
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest

import shardcore as sc
from shardcore.backend.messages import TableSpec
from shardcore.checkpoint import Checkpoint
from shardcore.errors import (
    ShardcoreError,
    ShardcoreIndexError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.initializers.base import derived_seed
from shardcore.initializers.constants import Constant, FromArray, RowId, Zeros
from shardcore.initializers.distributions import Normal
from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.slot_values import constant_of, fill_slots, initial_slots
from shardcore.optimizer.slots import SlotSpec
from shardcore.testing import ModelBackend
from shardcore.testing.beginnings import Declared, FromRows

ROWS, DIM = 23, 5
ELEMENTS = np.arange(ROWS * DIM, dtype=np.float64).reshape(ROWS, DIM) / 8
PER_ROW = ELEMENTS[:, :1].astype(np.float32) + 1


def by_number(rows, row_shape, dtype, seed):
    """A user's own initializer: the row's number, and the seed's last bits."""
    return np.full((len(rows), *row_shape), seed % 256, dtype) + rows[:, None]


@dataclass
class Unhashable:
    """An initializer that compares its parts, and hence cannot be hashed."""

    value: float

    def __call__(self, rows, row_shape, dtype, seed):
        return np.full((len(rows), *row_shape), self.value, dtype)


def from_rows(rows, row_ids):
    xp = rows.__array_namespace__()
    return {"momenta": rows * 0.5, "counts": xp.astype(row_ids[:, None], rows.dtype)}


def with_momenta(grad, rows, slots, hyper, step, row_ids):
    momenta = slots["momenta"] + grad
    return rows - hyper["learning_rate"] * momenta, {
        "momenta": momenta,
        "counts": slots["counts"] + 1,
    }


def custom(**arguments):
    specs = [SlotSpec("momenta", "element"), SlotSpec("counts", "row", "float64")]
    return sc.optimizers.Custom(with_momenta, 0.5, slot_specs=specs, **arguments)


OPTIMIZERS = {
    "array": sc.optimizers.Adagrad(0.1, slot_initial_values={"accumulators": ELEMENTS + 0.5}),
    "initializer": sc.optimizers.Adam(
        0.1, bias_correction="row", slot_dtype="float16",
        slot_initial_values={
            "momenta": Normal(), "velocities": by_number, "beta_1_powers": PER_ROW,
            "beta_2_powers": 0.5,
        },
    ),
    "row array": sc.optimizers.RowwiseAdagrad(0.1, slot_initial_values={"accumulators": PER_ROW}),
    "declared": Declared(ROWS, DIM),
    "init": FromRows(),
    "custom": custom(initialization=from_rows),
}  # fmt: skip

PLACES = [
    ("cpu", None, "row"),
    ("sim", 1, "row"),
    *(("sim", hosts, placement) for hosts in (2, 3)
      for placement in ("row", "table", "column", "replicated")),
    ("sim", 7, "column"),  # more hosts than columns
]  # fmt: skip


def make_engine(optimizer, backend="cpu", hosts=None, placement="row", layout="div", **table):
    table = {"dtype": "float16", "name": "t", **table}
    config = sc.TableConfig(ROWS, DIM, layout=layout, placement=placement, **table)
    options = {} if hosts is None else {"backend_options": {"hosts": hosts}}
    features = {"f": sc.FeatureConfig(config)}
    return sc.ShardedEmbedding(features, optimizer, backend=backend, seed=11, **options)


def stored(engine):
    arrays = {None: engine.tables["t"], **engine.slots["t"]}
    return {name: (a.dtype.name, np.asarray(a).tobytes()) for name, a in arrays.items()}


def train(engine):
    for step in range(3):
        rng = np.random.default_rng(step)
        engine.enqueue({"f": rng.integers(0, ROWS, (9, 3))})
        shape = engine.dequeue()["f"].shape
        engine.apply_gradients({"f": rng.normal(size=shape)})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_bits_everywhere(name, tmp_path):
    """As created, as trained, and as reset over restored rows, by every backend and placement."""
    optimizer = OPTIMIZERS[name]
    seen = []
    for backend, hosts, placement in PLACES:
        for layout in ("div", "mod"):
            with make_engine(optimizer, backend, hosts, placement, layout) as engine:
                engine.build()
                states = [stored(engine)]
                train(engine)
                states.append(stored(engine))
                root = tmp_path / f"{backend}-{hosts}-{placement}-{layout}"
                Checkpoint(e=engine).save(root, step=3)
                train(engine)
                Checkpoint(e=engine).restore(root, slots="reset")
                states.append(stored(engine))
                with make_engine(optimizer, backend, hosts, placement, layout) as unbuilt:
                    Checkpoint(e=unbuilt).restore(root, slots="reset")
                    assert stored(unbuilt) == states[-1]
                with make_engine(optimizer, backend, hosts, placement, layout) as unbuilt:
                    Checkpoint(e=unbuilt).restore(root)
                    assert stored(unbuilt) == states[1]
            seen.append(states)
    created, trained, reset = seen[0]
    assert created != trained
    assert reset[None] == trained[None]
    for slot in created:
        if slot is None:
            continue
        assert trained[slot] != created[slot]
        if not optimizer.init_reads_rows:
            assert reset[slot] == created[slot]
    for (backend, hosts, placement), states in zip(
        [place for place in PLACES for _ in "dm"], seen, strict=True
    ):
        assert states == seen[0], f"{backend} of {hosts} hosts, placement {placement}"


def test_what_the_slots_hold():
    with make_engine(OPTIMIZERS["array"]) as engine:
        engine.build()
        slot = engine.slots["t"]["accumulators"]
        np.testing.assert_array_equal(slot, (ELEMENTS + 0.5).astype(np.float32), strict=True)
    with make_engine(OPTIMIZERS["initializer"]) as engine:
        engine.build()
        slots, seed = engine.slots["t"], engine.config()["tables"][0]["seed"]
        ids = np.arange(ROWS)
        normals = Normal()(ids, (DIM,), np.dtype("float16"), derived_seed(seed, "momenta"))
        np.testing.assert_array_equal(slots["momenta"], normals, strict=True)
        own = derived_seed(seed, "velocities") % 256 + ids[:, None]
        np.testing.assert_array_equal(slots["velocities"], np.broadcast_to(own, (ROWS, DIM)))
        np.testing.assert_array_equal(slots["beta_1_powers"], PER_ROW, strict=True)
        np.testing.assert_array_equal(slots["beta_2_powers"], np.full((ROWS, 1), 0.5, "f"))


def test_slots_from_rows_begin_with_the_rows(tmp_path):
    with make_engine(OPTIMIZERS["custom"], dtype="float32") as engine:
        engine.build()
        before = np.asarray(engine.tables["t"])
        np.testing.assert_array_equal(engine.slots["t"]["momenta"], before * np.float32(0.5))
        counts = np.arange(ROWS)[:, None] * 1.0
        np.testing.assert_array_equal(engine.slots["t"]["counts"], counts, strict=True)
        train(engine)
        Checkpoint(e=engine).save(tmp_path, step=1)
        rows = np.asarray(engine.tables["t"])
        assert not np.array_equal(rows, before)
        Checkpoint(e=engine).restore(tmp_path, slots="reset")
        np.testing.assert_array_equal(engine.slots["t"]["momenta"], rows * np.float32(0.5))
        np.testing.assert_array_equal(engine.slots["t"]["counts"], counts, strict=True)


def test_another_optimizer_begins_from_the_restored_rows(tmp_path):
    """The checkpoint is of an optimizer that has other slots."""
    with make_engine(sc.optimizers.Adagrad(0.1)) as engine:
        train(engine)
        Checkpoint(e=engine).save(tmp_path, step=1)
        rows = np.asarray(engine.tables["t"])
    for backend, hosts, placement in PLACES:
        with make_engine(FromRows(), backend, hosts, placement) as engine:
            checkpoint = Checkpoint(e=engine)
            checkpoint.restore(tmp_path, slots="reset")
            assert checkpoint.skipped == {"e": ("t/accumulators",)}
            wanted = 2 * rows.astype(np.float32)
            np.testing.assert_array_equal(engine.slots["t"]["doubles"], wanted, strict=True)


# ----------------------------------------------------------------------------- their price


def test_constants_cost_nothing_more(monkeypatch):
    """Zeros are not written, other numbers not through blocks."""

    def refuse(*arguments):
        raise AssertionError("a constant must not pass through an initializer")

    monkeypatch.setattr("shardcore.optimizer.slots.fill", refuse)
    for optimizer in (sc.optimizers.Adagrad(0.1), sc.optimizers.Adam(0.1, bias_correction="row")):
        for backend, hosts, placement in PLACES:
            with make_engine(optimizer, backend, hosts, placement) as engine:
                engine.build()
    written = np.zeros((4, 2))
    written.flags.writeable = False
    fill_slots(sc.optimizers.FTRL(0.1), {"linears": written}, None, range(4), 0, zeroed=True)


@pytest.mark.parametrize(
    "optimizer",
    [
        FromRows(),
        sc.optimizers.Adam(
            slot_initial_values={"momenta": Normal(), "velocities": np.ones((1 << 17, 8))}
        ),
    ],
    ids=["init", "declared"],
)
def test_only_a_block_exists_beside_the_slots(optimizer):
    count = 1 << 17
    rows = np.zeros((count, 8), np.float32)
    slots = {
        slot.name: np.zeros(slot.shape(count, 8), slot.storage_dtype("float32"))
        for slot in optimizer.slots
    }
    assert sum(slot.nbytes for slot in slots.values()) > 4 << 20
    tracemalloc.start()
    fill_slots(optimizer, slots, rows, range(count), 0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(slot[-1].all() for name, slot in slots.items() if name != "doubles")
    assert most < sum(slot.nbytes for slot in slots.values())


def test_an_init_is_told_the_rows_of_every_block():
    """Of a table that takes several blocks: their numbers, and their values."""
    count, dim = 1 << 17, 8
    first = 1_000_003
    rows = np.arange(count * dim, dtype=np.float32).reshape(count, dim)
    optimizer = custom(initialization=from_rows)
    slots = initial_slots(optimizer, rows, range(first, first + count), 0)
    np.testing.assert_array_equal(slots["momenta"], rows * np.float32(0.5))
    numbers = np.arange(first, first + count).astype(np.float32)
    np.testing.assert_array_equal(slots["counts"][:, 0], numbers)


# ----------------------------------------------------------------------------- the functions


def test_initial_slots_and_parts_of_them():
    optimizer = Declared(ROWS, DIM)
    rows = np.zeros((ROWS, DIM), np.float32)
    whole = initial_slots(optimizer, rows, range(ROWS), 5)
    assert [(name, slot.dtype.name, slot.shape) for name, slot in whole.items()] == [
        ("constants", "float32", (ROWS, DIM)), ("normals", "float32", (ROWS, DIM)),
        ("numbers", "float32", (ROWS, 1)), ("elements", "float32", (ROWS, DIM)),
        ("halves", "float16", (ROWS, 1)),
    ]  # fmt: skip
    assert initial_slots(None, rows, range(ROWS), 5) == {}
    some = np.array([7, 3, 22])
    for optimizer in (Declared(ROWS, DIM), FromRows()):
        rows = np.random.default_rng(0).normal(size=(ROWS, DIM))
        whole = initial_slots(optimizer, rows, range(ROWS), 5)
        for name, slot in initial_slots(optimizer, rows[some], some, 5).items():
            np.testing.assert_array_equal(slot, whole[name][some], strict=True)
        direct = optimizer.init(rows[some], some, 5)
        for name, slot in direct.items():
            np.testing.assert_array_equal(slot, whole[name][some])
    other = initial_slots(Declared(ROWS, DIM), rows, range(ROWS), 6)["normals"]
    assert not np.array_equal(other, initial_slots(Declared(ROWS, DIM), rows, range(ROWS), 5))
    assert not np.array_equal(other, Normal()(np.arange(ROWS), (DIM,), "float64", 6))


def test_init_numbers_rows_where_nobody_else_does():
    rows = np.zeros((3, DIM))
    counted = Declared(ROWS, DIM).init(rows)["numbers"]
    np.testing.assert_array_equal(counted, [[1000.0], [1001.0], [1002.0]])
    np.testing.assert_array_equal(
        custom(initialization=from_rows).init(rows)["counts"], [[0], [1], [2]]
    )


def test_constant_of():
    slots = {slot.name: slot for slot in Declared(ROWS, DIM).slots}
    found = {name: constant_of(Declared(ROWS, DIM), slot) for name, slot in slots.items()}
    assert found == {"constants": 0.5, **dict.fromkeys([*slots][1:])}
    numbers = FromRows().slots[1]
    assert (numbers.constant, constant_of(FromRows(), numbers)) == (7.0, None)
    assert SlotSpec("x", "row", fill=Constant(0.25)) == SlotSpec("x", "row", fill=0.25)
    assert SlotSpec("x", "row", fill=Zeros()) == SlotSpec("x", "row")


@dataclass(frozen=True, eq=False, repr=False)
class Returns(Optimizer):
    """An `init` that returns whatever it is told."""

    given: tuple = ()

    hyper_names = ()
    slots = (SlotSpec("halves", "element", "float16"),)

    def init(self, rows, row_ids=None, seed=0):
        assert not rows.flags.writeable
        assert not row_ids.flags.writeable
        return self.given[0]

    def update(self, grad, rows, slots, hyper, step, row_ids):
        return rows, slots


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (3, ShardcoreTypeError, "init of optimizer Returns must return a mapping of slot names to "
         "arrays, got int"),
        ({}, ShardcoreValueError, "init of optimizer Returns must return the slots ['halves'], "
         "got []"),
        ({"halves": 1, "x": 2}, ShardcoreValueError, "init of optimizer Returns must return the "
         "slots ['halves'], got ['halves', 'x']"),
        ({"halves": np.zeros((2, 1))}, ShardcoreValueError, "init of optimizer Returns, slot "
         "'halves', must return shape (2, 3) for 2 rows of shape (3,), got (2, 1)"),
        ({"halves": np.zeros((2, 3), complex)}, ShardcoreTypeError, "init of optimizer Returns, "
         "slot 'halves', returned dtype complex128, which does not cast to float16 within the "
         "same kind"),
        ({"halves": np.array([[0, 0, 0], [0, 0, 7e4]])}, ShardcoreValueError, "init of optimizer "
         "Returns, slot 'halves', returned 70000.0 for row 9, which does not fit float16"),
        ({"halves": object()}, ShardcoreTypeError, "init of optimizer Returns, slot 'halves', must "
         "return an array, got object"),
    ],
)  # fmt: skip
def test_messages_about_an_init(given, error, text):
    rows = np.zeros((2, 3), np.float32)
    with pytest.raises(error, match="^" + re.escape(text) + "$"):
        initial_slots(Returns((given,)), rows, range(8, 10), 0)


def test_rows_are_needed_by_an_init():
    text = "rows must be given: optimizer FromRows makes slots from them, got None"
    with pytest.raises(ShardcoreValueError, match=re.escape(text)):
        fill_slots(FromRows(), {}, None, range(2), 0)


def test_a_failing_initializer_is_told_with_its_slot():
    optimizer = sc.optimizers.Adagrad(0.1, slot_initial_values={"accumulators": lambda *_: [1.0]})
    text = "must return shape (23, 5) for 23 rows of shape (5,), got (1,)"
    with make_engine(optimizer) as engine:
        with pytest.raises(ShardcoreValueError, match=re.escape(text)) as caught:
            engine.build()
        assert caught.value.__notes__ == ["in the initial values of slot 'accumulators'"]
        assert "t" not in engine._backend.specs
    short = Declared(4, DIM)
    text = "rows[4] = 4 is outside the initial values: must be in [0, 4)"
    with pytest.raises(ShardcoreIndexError, match=re.escape(text)):
        ModelBackend().create_table(
            TableSpec("t", ROWS, DIM, np.dtype("float32"), Zeros(), 0, short)
        )


# ----------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ("1", ShardcoreTypeError, " must be a number, an array or an initializer, got '1'"),
        (None, ShardcoreTypeError, " must be a number, an array or an initializer, got None"),
        (True, ShardcoreTypeError, " must be a number, an array or an initializer, got True"),
        (Normal, ShardcoreTypeError, " must be a number, an array or an initializer, got the class "
         "Normal; write Normal()"),
        (np.inf, ShardcoreValueError, " must be a number, finite as float32, got inf"),
        (Constant(1e39), ShardcoreValueError, " must be a number, finite as float32, got 1e+39"),
        (np.zeros(3), ShardcoreValueError, " must have the slot's shape, (rows, dim) or (rows, 1), "
         "got an array of shape (3,)"),
        (FromArray([1.0]), ShardcoreValueError, " must have the slot's shape, (rows, dim) or "
         "(rows, 1), got an array of shape (1,)"),
        (np.zeros((3, 1), complex), ShardcoreTypeError, " must be float16, bfloat16, float32 or "
         "float64, got dtype complex128"),
        ([[1.0], ["x"]], ShardcoreTypeError, "[1, 0] must be a number, got 'x'"),
    ],
)  # fmt: skip
def test_messages_about_a_value(value, error, text):
    for where, make in (
        ("fill of slot 'x'", lambda: SlotSpec("x", "element", fill=value)),
        ("slot_initial_values['accumulators']",
         lambda: sc.optimizers.Adagrad(0.1, slot_initial_values={"accumulators": value})),
    ):  # fmt: skip
        with pytest.raises(error, match="^" + re.escape(where + text) + "$"):
            make()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "slot_initial_values must be a mapping of slot name to number, array or initializer, "
         "got 3"),
        ((3, 4), "slot_initial_values must be a mapping of slot name to number, array or "
         "initializer, got (3, 4)"),
        ({"momenta": 1.0}, "slot_initial_values names slot 'momenta', which this Adagrad does not "
         "have: its slots are 'accumulators'"),
        ({3: 1.0}, "slot_initial_values names slot 3, which this Adagrad does not have: its slots "
         "are 'accumulators'"),
    ],
)  # fmt: skip
def test_messages_about_the_mapping(value, text):
    with pytest.raises(ShardcoreError, match="^" + re.escape(text) + "$"):
        sc.optimizers.Adagrad(0.1, slot_initial_values=value)


def test_message_of_an_optimizer_without_slots():
    text = "slot_initial_values names slot 'momenta', which this SGD does not have: it has none"
    with pytest.raises(ShardcoreValueError, match="^" + re.escape(text) + "$"):
        sc.optimizers.SGD(0.1, slot_initial_values={"momenta": 1.0})
    assert sc.optimizers.SGD(0.1, momentum=0.5, slot_initial_values={"momenta": 1.0}).slots[0].fill


@pytest.mark.parametrize(
    ("optimizer", "shape", "text"),
    [
        (sc.optimizers.Adagrad, (ROWS, DIM + 1), "slot's shape (23, 5), got an array of shape "
         "(23, 6)"),
        (sc.optimizers.Adagrad, (DIM, ROWS), "slot's shape (23, 5), got an array of shape (5, 23)"),
        (sc.optimizers.Adagrad, (ROWS, 1), "slot's shape (23, 5), got an array of shape (23, 1)"),
        (sc.optimizers.RowwiseAdagrad, (ROWS, DIM), "slot's shape (23, 1), got an array of shape "
         "(23, 5)"),
        (sc.optimizers.RowwiseAdagrad, (ROWS + 1, 1), "slot's shape (23, 1), got an array of shape "
         "(24, 1)"),
    ],
)  # fmt: skip
def test_an_array_of_another_shape_is_refused_before_anything_is_created(optimizer, shape, text):
    given = optimizer(0.1, slot_initial_values={"accumulators": np.ones(shape)})
    text = f"initial values of slot 'accumulators' of table 'words' must have the {text}"
    with pytest.raises(ShardcoreValueError, match="^" + re.escape(text) + "$"):
        make_engine(given, name="words")


@pytest.mark.parametrize(
    ("initialization", "text"),
    [
        (lambda rows, row_ids: 3, "initialization must return a mapping of slot names to arrays, "
         "got int"),
        (lambda rows, row_ids: {"x": rows}, "initialization must return slots of ['momenta', "
         "'counts'], got 'x'"),
        (3, "initialization must be a callable (rows, row_ids) -> slots, or None, got 3"),
    ],
)  # fmt: skip
def test_messages_about_an_initialization(initialization, text):
    with pytest.raises(ShardcoreError, match="^" + re.escape(text) + "$"):
        custom(initialization=initialization).init(np.zeros((2, 3)))


def test_what_an_initialization_leaves_out():
    optimizer = custom(
        initialization=lambda rows, row_ids: {"counts": row_ids[:, None]},
        slot_initial_values={"momenta": RowId(5), "counts": 9.0},
    )
    slots = initial_slots(optimizer, np.zeros((2, 1), np.float32), range(3, 5), 0)
    assert slots["momenta"].tolist() == [[8.0], [9.0]]
    assert slots["counts"].tolist() == [[3.0], [4.0]]
    assert optimizer.init_reads_rows
    assert not custom().init_reads_rows


def test_every_first_party_optimizer_takes_them():
    for kind in ("Adagrad", "RowwiseAdagrad", "AdagradMomentum", "FTRL", "Adam", "AdamW",
                 "RowwiseAdam", "RMSProp", "LAMB", "LARS"):  # fmt: skip
        plain = getattr(sc.optimizers, kind)(0.1)
        for at, slot in enumerate(plain.slots):
            given = type(plain)(0.1, slot_initial_values={slot.name: RowId()})
            wanted = [RowId() if k == at else s.fill for k, s in enumerate(plain.slots)]
            assert [s.fill for s in given.slots] == wanted
            assert [(s.name, s.kind, s.dtype) for s in given.slots] == [
                (s.name, s.kind, s.dtype) for s in plain.slots
            ]
    adam = sc.optimizers.Adam(0.1, bias_correction="row",
                              slot_initial_values={"beta_2_powers": 0.25})  # fmt: skip
    assert [slot.fill for slot in adam.slots] == [0.0, 0.0, 1.0, 0.25]


# ----------------------------------------------------------------------------- values of their own


def adagrad(value):
    return sc.optimizers.Adagrad(0.1, slot_initial_values={"accumulators": value})


def test_equality_and_hash():
    equal = [
        (adagrad(ELEMENTS), adagrad(ELEMENTS.copy())),
        (adagrad(ELEMENTS), adagrad(ELEMENTS.tolist())),
        (adagrad(FromArray(ELEMENTS)), adagrad(np.asfortranarray(ELEMENTS))),
        (adagrad(Normal(0, 2)), adagrad(Normal(0, 2))),
        (adagrad(by_number), adagrad(by_number)),
        (adagrad(1), adagrad(np.float32(1))),
        (sc.optimizers.Adagrad(0.1, slot_initial_values={}), sc.optimizers.Adagrad(0.1)),
    ]
    for left, right in equal:
        assert left == right
        assert hash(left) == hash(right)
        assert left.slots == right.slots
        assert hash(left.slots) == hash(right.slots)
    unhashable = Unhashable(1.0)
    assert adagrad(unhashable) == adagrad(unhashable)
    assert hash(adagrad(unhashable)) == hash(adagrad(unhashable))
    different = [
        adagrad(ELEMENTS), adagrad(ELEMENTS + 1), adagrad(ELEMENTS.astype(np.float32)),
        adagrad(ELEMENTS[:-1]), adagrad(Normal()), adagrad(Normal(0, 2)), adagrad(by_number),
        adagrad(lambda *_: 0), adagrad(Unhashable(1.0)), adagrad(Unhashable(1.0)), adagrad(1.0),
        sc.optimizers.Adagrad(0.1),
    ]  # fmt: skip
    for at, left in enumerate(different):
        for right in different[:at]:
            assert left != right
            assert left.slots != right.slots
    assert FromArray(ELEMENTS) != 3
    assert SlotSpec("x", "row") != 3
    both = {"momenta": 1.0, "velocities": Normal()}
    turned = dict(reversed(both.items()))
    assert sc.optimizers.Adam(0.1, slot_initial_values=both) == sc.optimizers.Adam(
        0.1, slot_initial_values=turned
    )


def test_parameters_make_the_same_optimizer_again():
    for optimizer in (*OPTIMIZERS.values(), adagrad(Unhashable(1.0))):
        again = type(optimizer)(**optimizer.parameters())
        assert again == optimizer
        assert again.slots == optimizer.slots
    again = pickle.loads(pickle.dumps(OPTIMIZERS["array"]))
    assert again == OPTIMIZERS["array"]


def test_arrays_are_not_copied():
    assert np.shares_memory(adagrad(ELEMENTS).slots[0].fill.array, ELEMENTS)


def test_config_and_repr():
    config = adagrad(ELEMENTS).config()
    assert json.loads(json.dumps(config)) == config
    ((name, described),) = config["slot_initial_values"]
    assert name == "accumulators"
    assert described["array"]["shape"] == [ROWS, DIM]
    assert described["array"]["dtype"] == "float64"
    assert re.fullmatch("[0-9a-f]{32}", described["array"]["blake2b"])
    changed = ELEMENTS.copy()
    changed[-1, -1] += 1
    assert adagrad(changed).config() != config
    assert adagrad(Normal()).config()["slot_initial_values"] == [
        ["accumulators", {"initializer": "Normal(mean=0.0, stddev=1.0)"}]
    ]
    assert adagrad(by_number).config()["slot_initial_values"] == [
        ["accumulators", {"callable": f"{__name__}.by_number"}]
    ]
    assert sc.optimizers.Adagrad(0.1).config()["slot_initial_values"] is None
    shown = "slot_initial_values=(('accumulators', "
    by_shape = "<rows of an array of shape (23, 5), dtype float64>"
    assert f"{shown}{by_shape}),)" in repr(adagrad(ELEMENTS))
    assert f"{shown}Normal(mean=0.0, stddev=1.0)),)" in repr(adagrad(Normal()))
    assert f"{shown}<{__name__}.by_number>),)" in repr(adagrad(by_number))
    assert "slot_initial_values" not in repr(sc.optimizers.Adagrad(0.1))
    assert repr(SlotSpec("x", "row", fill=by_number)) == (
        f"SlotSpec(name='x', kind='row', dtype=None, fill=<{__name__}.by_number>)"
    )
    assert repr(SlotSpec("x", "row")) == "SlotSpec(name='x', kind='row', dtype=None, fill=0.0)"
    optimizer = custom(initialization=from_rows)
    assert optimizer.config()["initialization"] == {"callable": f"{__name__}.from_rows"}
    slots = Declared(2, 1).slots
    specs = sc.optimizers.Custom(with_momenta, slot_specs=slots).config()["slot_specs"]
    assert specs[1]["fill"] == {"initializer": "Normal(mean=0.0, stddev=1.0)"}
    assert specs[4]["fill"]["array"]["shape"] == [2, 1]


def test_config_of_an_engine():
    with make_engine(adagrad(ELEMENTS)) as engine:
        described = engine.config()["tables"][0]["optimizer"]
        assert json.loads(json.dumps(described)) == described
        assert described["learning_rate"] == "constant"
        ((_, value),) = described["parameters"]["slot_initial_values"]
        assert value["array"]["shape"] == [ROWS, DIM]
    with make_engine(custom(initialization=from_rows)) as engine:
        described = engine.config()["tables"][0]["optimizer"]
        assert described["learning_rate"] == "constant"
        assert described["parameters"]["initialization"] == {"callable": f"{__name__}.from_rows"}


# ----------------------------------------------------------------------------- FromArray


def test_from_array():
    init = FromArray([[1.0, 2.0], [3.0, 4.0]])
    assert repr(init) == "<rows of an array of shape (2, 2), dtype float64>"
    table = sc.TableConfig(2, 2, initializer=init, name="t")
    with sc.ShardedEmbedding({"f": sc.FeatureConfig(table)}) as engine:
        engine.build()
        assert np.asarray(engine.tables["t"]).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ShardcoreTypeError, match="array must be an array, got object"):
        FromArray(object())
    with pytest.raises(
        ShardcoreValueError, match=re.escape("array must have at least one axis, got ()")
    ):
        FromArray(1.0)
    long = np.arange(3 << 18, dtype=np.float64).reshape(-1, 3)  # its checksum takes several blocks
    assert FromArray(long) == FromArray(np.asfortranarray(long))
    assert FromArray(long).checksum != FromArray(long[::-1]).checksum

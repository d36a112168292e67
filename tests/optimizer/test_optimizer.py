"""The contract of an optimizer: its values, its messages, and the compiled form's way in."""

from __future__ import annotations

import ctypes
import functools
import json
import pickle
import re
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import numpy as np
import pytest

import shardcore as sc
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.compiled import UpdateFunction, update_prototype
from shardcore.optimizer.hyperparameters import (
    LearningRate,
    check_hyper_parameter,
    check_learning_rate,
    evaluate_learning_rate,
)
from shardcore.optimizer.slots import SlotSpec


class Decay(Optimizer):
    """w -= rate * factor * g, and counts in a row slot: enough to exercise the base class."""

    learning_rate: LearningRate = 0.01
    factor: float = 1.0

    hyper_names = ("learning_rate", "factor")
    slots = (SlotSpec("counts", "row"), SlotSpec("sums", "element", "float64", fill=2.0))

    def update(self, grad, rows, slots, hyper, step, row_ids):
        learning_rate, factor = hyper
        moved = {"counts": slots["counts"] + 1, "sums": slots["sums"] + grad}
        return rows - learning_rate * factor * grad, moved


class Other(Decay):
    name = "other-name"


def rate():
    return 0.25


class Schedule:
    """A schedule that is unhashable and equal to everything, as some are."""

    __hash__ = None

    def __eq__(self, other):
        return True

    def __call__(self):
        return 0.5

    def now(self):
        return 0.75


# ----------------------------------------------------------------------------- learning rate


@pytest.mark.parametrize("value", [0, 0.5, 1, np.float32(0.5), np.int64(2), np.array(0.5)])
def test_learning_rate_numbers_become_floats(value):
    checked = check_learning_rate(value)
    assert type(checked) is float
    assert checked == float(value)
    assert evaluate_learning_rate(checked) == float(value)


@pytest.mark.parametrize("value", [-1, -1e-30, np.inf, -np.inf, np.nan, 1e39, 10**400])
def test_learning_rate_out_of_range(value):
    text = (
        "learning_rate must be a number >= 0, finite as float32, "
        f"or a callable that takes nothing or the step, got {value!r}"
    )
    with pytest.raises(ShardcoreValueError, match=re.escape(text)):
        check_learning_rate(value)
    text = f"rate() must return a number >= 0, finite as float32, got {value!r}"
    with pytest.raises(ShardcoreValueError, match=re.escape(text)):
        evaluate_learning_rate(lambda: value, "rate")


@pytest.mark.parametrize("value", ["0.1", None, True, np.True_, 1j, [0.1], np.array([0.1])])
def test_learning_rate_of_another_type(value):
    text = (
        "learning_rate must be a number >= 0, finite as float32, "
        f"or a callable that takes nothing or the step, got {value!r}"
    )
    with pytest.raises(ShardcoreTypeError, match=re.escape(text)):
        check_learning_rate(value)
    text = f"learning_rate() must return a number >= 0, finite as float32, got {value!r}"
    with pytest.raises(ShardcoreTypeError, match=re.escape(text)):
        evaluate_learning_rate(lambda: value)


RULE = (
    "learning_rate must be a number >= 0, finite as float32, "
    "or a callable that takes nothing or the step, got "
)


def test_learning_rate_callable_that_needs_arguments():
    def decay(step, rate):
        return rate / step

    text = (
        f"{RULE}{__name__}.test_learning_rate_callable_that_needs_arguments.<locals>.decay: "
        "missing a required argument: 'rate'"
    )
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(text)}$"):
        check_learning_rate(decay)
    bound = functools.partial(decay, 4, 1)
    assert check_learning_rate(bound) is bound
    assert evaluate_learning_rate(bound) == 0.25
    of_the_step = functools.partial(decay, rate=1)
    assert check_learning_rate(of_the_step) is of_the_step
    assert evaluate_learning_rate(of_the_step, step=2) == 0.5
    text = f"{RULE}functools.partial: too many positional arguments"
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(text)}$"):
        check_learning_rate(functools.partial(decay, step=4))


def by_default(step=0):
    return 1 / (1 + step)


def of_any(*steps):
    return 1.0


@pytest.mark.parametrize(
    ("either", "shown"),
    [
        (by_default, f"{__name__}.by_default(step=0)"),
        (of_any, f"{__name__}.of_any(*steps)"),
        (float, "builtins.float(x=0, /)"),
    ],
    ids=["default", "any", "float"],
)
def test_learning_rate_callable_that_can_be_called_both_ways_is_refused(either, shown):
    text = (
        f"{RULE}{shown}, which takes either: "
        "write lambda: f() or lambda step: f(step) to say which is meant"
    )
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(text)}$"):
        check_learning_rate(either)
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(text)}$"):
        Decay(either).hyper(0)


def test_learning_rate_callable_without_a_signature_is_accepted():
    assert check_learning_rate(int) is int
    assert evaluate_learning_rate(int) == 0.0


def test_learning_rate_callable_of_the_step_gets_it():
    asked = []

    def rate(step):
        asked.append(step)
        return np.float32(0.5**step)

    optimizer = Decay(check_learning_rate(rate))
    assert asked == []
    assert [optimizer.hyper(step) for step in (0, 3)] == [(1.0, 1.0), (0.125, 1.0)]
    assert asked == [0, 3]
    assert optimizer.description()["learning_rate"] == "dynamic"
    text = "learning_rate takes the step, which is not known here: give it, as in hyper(step=0)"
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(text)}$"):
        optimizer.hyper()
    text = "learning_rate(7) must return a number >= 0, finite as float32, got -7"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(text)}$"):
        Decay(lambda step: -step).hyper(7)


def test_learning_rate_callable_is_called_once_per_hyper_and_never_before():
    calls = []

    def count():
        calls.append(1)
        return len(calls)

    optimizer = Decay(count)
    assert calls == []
    assert optimizer.hyper() == (1.0, 1.0)
    assert optimizer.hyper() == (2.0, 1.0)
    assert all(type(value) is float for value in optimizer.hyper())
    assert len(calls) == 3


def test_error_of_a_learning_rate_callable_is_its_own():
    def fail():
        raise LookupError("the schedule ended")

    with pytest.raises(LookupError, match="the schedule ended"):
        Decay(fail).hyper()


# ----------------------------------------------------------------------------- hyper-parameters


@pytest.mark.parametrize(
    ("value", "bounds", "rule"),
    [
        (np.nan, {}, "beta must be a number, finite as float32, got nan"),
        (-0.5, {"at_least": 0}, "beta must be a number >= 0, finite as float32, got -0.5"),
        (0, {"above": 0}, "beta must be a number > 0, finite as float32, got 0"),
        (-(10**400), {}, "beta must be a number, finite as float32, got -1000"),
    ],
)
def test_hyper_parameter_out_of_range(value, bounds, rule):
    with pytest.raises(ShardcoreValueError, match=re.escape(rule)):
        check_hyper_parameter(value, "beta", **bounds)


@pytest.mark.parametrize("value", ["1", True, None, rate])
def test_hyper_parameter_of_another_type(value):
    text = f"beta must be a number > 0, finite as float32, got {value!r}"
    with pytest.raises(ShardcoreTypeError, match=re.escape(text)):
        check_hyper_parameter(value, "beta", above=0)


# ----------------------------------------------------------------------------- slots


def test_slot_shapes_and_dtypes():
    row, element = Decay().slots
    assert row.shape(5, 3) == (5, 1)
    assert element.shape(5, 3) == (5, 3)
    assert [row.storage_dtype(t).name for t in ("float16", "bfloat16", "float32", "float64")] == [
        "float32",
        "float32",
        "float32",
        "float64",
    ]
    assert element.storage_dtype("float16") == np.float64
    assert SlotSpec("x", "row", "bfloat16").storage_dtype("float64").name == "bfloat16"
    assert SlotSpec("x", "row", np.float32) == SlotSpec("x", "row", "float32", 0)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("a b", "row"), ShardcoreValueError, "name of a slot must be an identifier, got 'a b'"),
        ((3, "row"), ShardcoreValueError, "name of a slot must be an identifier, got 3"),
        (
            ("x", "column"),
            ShardcoreValueError,
            "kind of slot 'x' must be 'row' or 'element', got 'column'",
        ),
        (
            ("x", "row", "int64"),
            ShardcoreTypeError,
            "dtype of slot 'x' must be a floating dtype, got 'int64'",
        ),
        (
            ("x", "row", "floaty"),
            ShardcoreTypeError,
            "dtype of slot 'x' must be a dtype, got 'floaty'",
        ),
        (
            ("x", "row", None, np.inf),
            ShardcoreValueError,
            "fill of slot 'x' must be a number, finite as float32, got inf",
        ),
    ],
)
def test_slot_messages(arguments, error, text):
    with pytest.raises(error, match=re.escape(text)):
        SlotSpec(*arguments)


# ----------------------------------------------------------------------------- the base class


def test_init_fills_the_slots():
    slots = Decay().init(np.zeros((2, 3), np.float32))
    assert list(slots) == ["counts", "sums"]
    np.testing.assert_array_equal(slots["counts"], np.zeros((2, 1), np.float32), strict=True)
    np.testing.assert_array_equal(slots["sums"], np.full((2, 3), 2.0), strict=True)


def test_defaults_of_the_base_class():
    class Plain(Optimizer):
        learning_rate: float = 0.5

        def update(self, grad, rows, slots, hyper, step, row_ids):
            return rows - hyper[0] * grad, slots

    plain = Plain()
    assert plain.name == "Plain"
    assert plain.slots == ()
    assert plain.lazy is True
    assert plain.hyper_names == ("learning_rate",)
    assert plain.compiled("float32") is None
    assert plain.init(np.zeros((2, 3))) == {}


def test_name_is_the_class_unless_it_says_otherwise():
    assert Decay.name == "Decay"
    assert Other.name == "other-name"


def test_equality_and_hash():
    assert Decay(0.5) == Decay(np.float64(0.5))
    assert hash(Decay(0.5)) == hash(Decay(0.5))
    assert Decay(0.5) != Decay(0.25)
    assert Decay(0.5) != Decay(0.5, factor=2.0)
    assert Decay(0.5) != Other(0.5)
    assert Decay(0.5) != 0.5
    assert len({Decay(0.5), Decay(0.5), Decay(1.0)}) == 2


def test_callables_compare_by_identity():
    assert Decay(rate) == Decay(rate)
    assert Decay(lambda: 0.25) != Decay(lambda: 0.25)
    schedule, twin = Schedule(), Schedule()
    assert Decay(schedule) == Decay(schedule)
    assert hash(Decay(schedule)) == hash(Decay(schedule))
    assert Decay(schedule) != Decay(twin)
    assert Decay(schedule.now) == Decay(schedule.now)
    assert hash(Decay(schedule.now)) == hash(Decay(schedule.now))
    assert Decay(schedule.now) != Decay(twin.now)


def test_optimizers_do_not_change():
    optimizer = Decay()
    with pytest.raises(FrozenInstanceError, match="learning_rate"):
        optimizer.learning_rate = 1.0
    with pytest.raises(FrozenInstanceError, match="learning_rate"):
        del optimizer.learning_rate


def test_pickle():
    copy = pickle.loads(pickle.dumps(Decay(0.5, factor=3.0)))
    assert copy == Decay(0.5, factor=3.0)


def test_repr_and_config():
    assert repr(Decay(0.5)) == "Decay(learning_rate=0.5, factor=1.0)"
    assert repr(Decay(rate)) == f"Decay(learning_rate=<{__name__}.rate>, factor=1.0)"
    assert repr(Decay(Schedule())) == f"Decay(learning_rate=<{__name__}.Schedule>, factor=1.0)"
    assert Other(0.5).config() == {"name": "other-name", "learning_rate": 0.5, "factor": 1.0}
    described = json.loads(json.dumps(Decay(rate).config()))
    assert described["learning_rate"] == {"callable": f"{__name__}.rate"}


def test_a_class_that_could_change_is_refused():
    text = (
        "optimizer class Loose must be a frozen dataclass: "
        "@dataclass(frozen=True, eq=False, repr=False)"
    )
    with pytest.raises(ShardcoreTypeError, match=re.escape(text)):

        @dataclass
        class Loose(Optimizer):
            def update(self, grad, rows, slots, hyper, step, row_ids):
                return rows, slots


def test_update_is_abstract():
    class Nothing(Optimizer):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Nothing()


# ----------------------------------------------------------------------------- compiled updates


def capsule(name: bytes | None, address: int = 64) -> Any:
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )
    return make(address, name, None)


CAPSULE_NAMES = [b"shardcore.update_rows.v1.float32", b"shardcore.update_rows.v1.float64"]


@pytest.mark.parametrize("name", CAPSULE_NAMES)
def test_from_capsule(name):
    made = capsule(name, address=4096)
    function = UpdateFunction.from_capsule(made)
    assert function.address == 4096
    assert function.owner is made
    assert function.dtype == np.dtype(name.decode().rsplit(".", 1)[-1])
    assert function == UpdateFunction.from_address(4096, owner=None)


CAPSULE_RULE = (
    "capsule must be named 'shardcore.update_rows.v1.float32' or 'shardcore.update_rows.v1.float64'"
)
OTHER_NAME = b"other.float32"


@pytest.mark.parametrize(("name", "shown"), [(OTHER_NAME, "'other.float32'"), (None, "None")])
def test_from_capsule_of_another_name(name, shown):
    with pytest.raises(ShardcoreValueError, match=re.escape(f"{CAPSULE_RULE}, got {shown}")):
        UpdateFunction.from_capsule(capsule(name))


def test_from_capsule_of_another_type():
    with pytest.raises(ShardcoreTypeError, match=re.escape("capsule must be a PyCapsule, got 3")):
        UpdateFunction.from_capsule(3)


@pytest.mark.parametrize("address", [0, -1, True, 1.0, None])
def test_from_address_messages(address):
    text = f"address of a compiled update must be an integer > 0, got {address!r}"
    with pytest.raises(ShardcoreValueError, match=re.escape(text)):
        UpdateFunction.from_address(address, owner=None)


def test_from_ctypes():
    callback = update_prototype("float64")(lambda *arguments: None)
    function = UpdateFunction.from_ctypes(callback)
    assert function.address == ctypes.cast(callback, ctypes.c_void_p).value
    assert function.owner is callback
    assert function.dtype == np.float64
    assert UpdateFunction.from_ctypes(ctypes.pythonapi.PyCapsule_New).dtype is None
    with pytest.raises(
        ShardcoreTypeError, match=re.escape(f"function must be a ctypes function, got {rate!r}")
    ):
        UpdateFunction.from_ctypes(rate)
    null = update_prototype("float64")(0)
    text = "address of a compiled update must be an integer > 0, got 0"
    with pytest.raises(ShardcoreValueError, match=re.escape(text)):
        UpdateFunction.from_ctypes(null)


def test_address_for():
    function = UpdateFunction(64, None, np.dtype(np.float32))
    assert function.address_for("float32") == 64
    text = "the compiled update works on float32, the table on float64"
    with pytest.raises(ShardcoreTypeError, match=re.escape(text)):
        function.address_for("float64")
    assert UpdateFunction(64, None).address_for("float64") == 64


def test_update_prototype_of_another_dtype():
    text = "dtype of a compiled update must be float32 or float64, got 'float16'"
    with pytest.raises(ShardcoreTypeError, match=re.escape(text)):
        update_prototype("float16")


@pytest.fixture
def recorder():
    """Return a function that writes what it was given to `seen`, and that list."""
    seen: list[Any] = []

    def record(count, dim, rows, slots, gradients, row_ids, hyper, step, context):
        seen.append(
            {
                "rows": [[rows[i][j] for j in range(dim)] for i in range(count)],
                "element": [[slots[1][i][j] for j in range(dim)] for i in range(count)],
                "row": [slots[0][i][0] for i in range(count)],
                "gradients": [gradients[i] for i in range(count * dim)],
                "row_ids": [row_ids[i] for i in range(count)],
                "hyper": [hyper[0], hyper[1]],
                "step": step,
            }
        )
        rows[count - 1][dim - 1] = 100.0
        slots[0][0][0] = 200.0

    return UpdateFunction.from_ctypes(update_prototype("float32")(record)), seen


def block() -> dict[str, Any]:
    return {
        "grad": np.arange(6, dtype=np.float32).reshape(2, 3),
        "rows": np.arange(6, 12, dtype=np.float32).reshape(2, 3),
        "slots": [
            np.array([[12.0], [13.0]], np.float32),
            np.arange(14, 20, dtype=np.float32).reshape(2, 3),
        ],
        "hyper": (0.1, 0.2),
        "step": 2**40,
        "row_ids": np.array([2**50, 7]),
    }


def test_run_hands_over_everything_in_place(recorder):
    function, seen = recorder
    given = block()
    function.run(**given)
    assert seen == [
        {
            "rows": [[6.0, 7.0, 8.0], [9.0, 10.0, 11.0]],
            "element": [[14.0, 15.0, 16.0], [17.0, 18.0, 19.0]],
            "row": [12.0, 13.0],
            "gradients": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
            "row_ids": [2**50, 7],
            "hyper": [0.1, 0.2],
            "step": 2**40,
        }
    ]
    assert given["rows"].tolist() == [[6.0, 7.0, 8.0], [9.0, 10.0, 100.0]]
    assert given["slots"][0].tolist() == [[200.0], [13.0]]


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (
            {"rows": np.zeros(3, np.float32)},
            ShardcoreValueError,
            "rows must have shape (n, dim), got (3,)",
        ),
        (
            {"rows": np.zeros((2, 3))},
            ShardcoreTypeError,
            "the compiled update works on float32, the table on float64",
        ),
        (
            {"grad": np.zeros((2, 3))},
            ShardcoreTypeError,
            "grad must have the dtype of rows, float32, got float64",
        ),
        (
            {"grad": np.zeros((2, 1), np.float32)},
            ShardcoreValueError,
            "grad must have shape (2, 3), got (2, 1)",
        ),
        (
            {"slots": [np.zeros((2, 2), np.float32)]},
            ShardcoreValueError,
            "slots[0] must have shape (2, 1) or (2, 3), got (2, 2)",
        ),
        (
            {"rows": np.zeros((3, 2), np.float32).T},
            ShardcoreValueError,
            "rows must be C-contiguous and writeable",
        ),
        (
            {"slots": [read_only(np.zeros((2, 1), np.float32))]},
            ShardcoreValueError,
            "slots[0] must be C-contiguous and writeable",
        ),
        (
            {"row_ids": np.zeros(2, np.int32)},
            ShardcoreValueError,
            "row_ids must be a contiguous int64 array of shape (2,), got int32 (2,)",
        ),
    ],
)
def test_run_messages(recorder, change, error, text):
    function, seen = recorder
    with pytest.raises(error, match=re.escape(text)):
        function.run(**{**block(), **change})
    assert seen == []


# ----------------------------------------------------------------------------- more of the contract


@pytest.mark.parametrize(
    ("bounds", "value", "rule"),
    [
        ({"at_least": 0, "below": 1}, 1, "momentum must be a number >= 0 and < 1"),
        ({"at_least": 0, "below": 1}, -0.5, "momentum must be a number >= 0 and < 1"),
        ({"above": 0, "at_most": 1}, 1.5, "momentum must be a number > 0 and <= 1"),
        ({"at_most": 0}, 1e-9, "momentum must be a number <= 0"),
    ],
)
def test_hyper_parameters_between_bounds(bounds, value, rule):
    text = f"{rule}, finite as float32, got {value!r}"
    with pytest.raises(ShardcoreValueError, match="^" + re.escape(text) + "$"):
        check_hyper_parameter(value, "momentum", **bounds)
    assert check_hyper_parameter(1, "momentum", above=0, at_most=1) == 1.0
    assert check_hyper_parameter(0.99, "momentum", at_least=0, below=1) == 0.99


def test_a_slot_in_the_dtype_of_the_table():
    slot = SlotSpec("sums", "element", "table")
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        assert slot.storage_dtype(dtype).name == dtype
    assert slot == SlotSpec("sums", "element", dtype="table")
    with pytest.raises(ShardcoreTypeError, match="dtype of slot 'sums' must be a dtype"):
        SlotSpec("sums", "element", "tables")


def test_an_optimizer_is_lazy_accumulates_and_rounds_to_the_nearest_unless_it_says_so():
    optimizer = Decay()
    assert (optimizer.lazy, optimizer.accumulate, optimizer.rounds_stochastically) == (
        *(True, True, False),
    )


class Keywords(Decay):
    limits: tuple[float, float] | None = field(default=None, kw_only=True)
    first: int = field(default=3, kw_only=True)
    last: float = 0.5


def test_a_description_is_that_of_an_engine():
    """The one that `ShardedEmbedding.config` gives of a table's optimizer."""
    schedule = sc.schedules.Cosine(0.5, steps=10).bind(lambda: 0)
    for optimizer, name, kind in (
        (Decay(0.5, factor=np.float32(2)), "Decay", "constant"),
        (Decay(rate), "Decay", "dynamic"),
        (Other(schedule), "other-name", "dynamic"),
        (Decay(0.5, factor=rate), "Decay", "dynamic"),
        (sc.optimizers.SGD(schedule, clipvalue=(None, 3)), "SGD", "dynamic"),
    ):
        described = optimizer.description()
        assert json.loads(json.dumps(described)) == described
        assert list(described) == ["name", "learning_rate", "parameters"]
        assert (described["name"], described["learning_rate"]) == (name, kind)
        assert list(described["parameters"]) == list(optimizer.parameters())
        config = sc.FeatureConfig(sc.TableConfig(3, 2, optimizer=optimizer))
        with sc.ShardedEmbedding(config) as engine:
            assert engine.config()["tables"][0]["optimizer"] == described
    assert Decay(0.5, factor=np.float32(2)).description()["parameters"]["factor"] == 2.0
    assert Other(schedule).description()["parameters"]["learning_rate"] == {
        "schedule": "Cosine(initial=0.5, steps=10, final=0.0)"
    }
    of_sgd = sc.optimizers.SGD(schedule, clipvalue=(None, 3)).description()["parameters"]
    assert of_sgd["clipvalue"] == [None, 3.0]


def test_keyword_only_parameters_are_shown_last_and_only_where_they_are_not_the_default():
    assert repr(Keywords()) == "Keywords(learning_rate=0.01, factor=1.0, last=0.5)"
    assert repr(Keywords(first=4, limits=(1.0, 2.0), last=0.25)) == (
        "Keywords(learning_rate=0.01, factor=1.0, last=0.25, limits=(1.0, 2.0), first=4)"
    )
    config = Keywords(limits=(1.0, 2.0)).config()
    assert list(config) == ["name", "learning_rate", "factor", "last", "limits", "first"]
    assert json.loads(json.dumps(config)) == config

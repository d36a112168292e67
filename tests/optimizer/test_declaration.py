"""Deriving from Optimizer makes a frozen dataclass, whether or not it is decorated as one too."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from dataclasses import KW_ONLY, FrozenInstanceError, InitVar, dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import pytest

from shardcore.errors import ShardcoreTypeError
from shardcore.optimizer import Optimizer, SlotSpec

PARAMETERS = (
    "(learning_rate: 'float' = 0.5, seen: 'list' = <factory>, *, "
    "first: 'int' = 3, last: 'int' = 4) -> None"
)


class Base(Optimizer):
    def update(self, grad, rows, slots, hyper, step, row_ids):
        return rows - hyper[0] * grad, slots


class Plain(Base):
    learning_rate: float = 0.5
    seen: list = field(default_factory=list)
    first: int = field(default=3, kw_only=True)
    _: KW_ONLY
    last: int = 4


@dataclass(frozen=True, eq=False, repr=False)
class Decorated(Base):
    learning_rate: float = 0.5
    seen: list = field(default_factory=list)
    first: int = field(default=3, kw_only=True)
    _: KW_ONLY
    last: int = 4


@dataclass(frozen=True, eq=False, repr=False)
class OnDecorated(Decorated):
    """Both, over both."""

    more: list = field(default_factory=list)


class OnBoth(OnDecorated, kw_only=True):
    learning_rate: float = 0.25
    own: int = 5


@pytest.mark.parametrize("cls", [Plain, Decorated])
def test_a_class_has_its_parameters_as_fields(cls):
    assert str(inspect.signature(cls)) == PARAMETERS
    optimizer = cls(0.25, [1], last=7)
    assert optimizer.parameters() == {"learning_rate": 0.25, "seen": [1], "first": 3, "last": 7}
    assert list(optimizer.parameters()) == [one.name for one in fields(cls)]
    assert repr(optimizer) == f"{cls.__name__}(learning_rate=0.25, seen=[1], last=7)"
    assert cls().seen is not cls().seen
    assert cls.first == 3
    assert cls.__match_args__ == ("learning_rate", "seen")
    with pytest.raises(TypeError, match="takes from 1 to 3 positional arguments but 4 were given"):
        cls(0.25, [1], 3)
    with pytest.raises(FrozenInstanceError, match="first"):
        optimizer.first = 1
    with pytest.raises(FrozenInstanceError, match="first"):
        del optimizer.first


def test_fields_are_inherited_whichever_way_they_were_declared():
    optimizer = OnBoth([1], [2], own=6)
    assert list(optimizer.parameters()) == ["seen", "more", "learning_rate", "first", "last", "own"]
    assert (optimizer.seen, optimizer.more, optimizer.learning_rate) == ([1], [2], 0.25)
    assert OnDecorated(0.125, more=[3]).parameters() == {
        "learning_rate": 0.125,
        "seen": [],
        "more": [3],
        "first": 3,
        "last": 4,
    }
    assert OnDecorated.__doc__ == "Both, over both."


@pytest.mark.parametrize("cls", [Plain, Decorated, OnDecorated, OnBoth])
def test_equality_hash_and_copies_are_those_of_the_base_class(cls):
    assert cls.__eq__ is Optimizer.__eq__
    assert cls.__hash__ is Optimizer.__hash__
    assert cls.__repr__ is Optimizer.__repr__
    optimizer = cls(last=9)
    assert optimizer == cls(last=9) != cls()
    for other in (copy.copy(optimizer), copy.deepcopy(optimizer)):
        assert (other, type(other)) == (optimizer, cls)
    assert pickle.loads(pickle.dumps(optimizer)) == optimizer


def test_the_arguments_of_a_decorator_hold():
    @dataclass(frozen=True, kw_only=True)
    class Compared(Base):
        learning_rate: float = 0.5

    assert str(inspect.signature(Compared)) == "(*, learning_rate: 'float' = 0.5) -> None"
    assert Compared.__eq__ is not Optimizer.__eq__
    assert Compared.__match_args__ == ()

    @dataclass(frozen=True, eq=False, repr=False, slots=True)
    class Slotted(Base):
        learning_rate: float = 0.5

    assert Slotted() == Slotted(0.5)
    assert "learning_rate" in Slotted.__slots__


def test_methods_of_a_class_are_its_own():
    class Mine(Base):
        learning_rate: float = 0.5
        scale: InitVar[float] = 2.0

        def __post_init__(self, scale):
            object.__setattr__(self, "learning_rate", scale * self.learning_rate)

        def __eq__(self, other):
            return "mine"

        def __repr__(self):
            return "Mine"

        __hash__ = None

    assert Mine(0.25, 4.0).learning_rate == 1.0
    assert (Mine() == 3, repr(Mine())) == ("mine", "Mine")


def test_an_abstract_class_stays_one_until_update_is_there():
    @dataclass(frozen=True, eq=False, repr=False)
    class Without(Optimizer):
        learning_rate: float = 0.5

    with pytest.raises(TypeError, match="abstract"):
        Without()
    assert inspect.isabstract(Without)
    assert not inspect.isabstract(Plain)


DECLARED = [
    "name",
    "hyper_names",
    "slots",
    "lazy",
    "accumulate",
    "elementwise",
    "rounds_stochastically",
    "init_reads_rows",
    "parameters",
    "hyper",
    "init",
    "update",
    "compiled",
    "config",
    "description",
]


def test_the_declarations_are_all_that_the_base_class_has():
    public = {name for name in dir(Optimizer) if not name.startswith("_")}
    assert public | {"name"} == set(DECLARED)


@pytest.mark.parametrize("name", DECLARED)
@pytest.mark.parametrize("annotation", ["tuple[SlotSpec, ...]", int])
def test_an_annotated_declaration_is_refused(name, annotation):
    shown = annotation if isinstance(annotation, str) else "int"
    text = (
        f"optimizer class Faulty must declare {name} without an annotation or as ClassVar, "
        f"or it is a parameter, got {name}: {shown}"
    )
    with pytest.raises(ShardcoreTypeError, match="^" + re.escape(text) + "$"):
        type(Base)("Faulty", (Base,), {"__annotations__": {name: annotation}, name: 3})


def test_a_declaration_may_be_a_class_variable():
    class Fine(Base):
        slots: ClassVar[tuple[SlotSpec, ...]] = (SlotSpec("sums", "row"),)
        name: ClassVar[str] = "fine"
        learning_rate: float = 0.5

    assert list(Fine(0.25).init(np.ones((2, 3)))) == ["sums"]
    assert (Fine.name, Fine(0.25).parameters()) == ("fine", {"learning_rate": 0.25})


def test_a_type_checker_is_told():
    told: dict[str, Any] = Optimizer.__dataclass_transform__
    assert told["kwargs"] == {"frozen_default": True} or told["frozen_default"]
    assert (told["eq_default"], told["kw_only_default"]) == (False, False)
    assert field in told["field_specifiers"]

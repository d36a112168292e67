"""A twin takes what its face takes: the same names in the same order, with the same defaults."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from shardcore import reference
from shardcore._core import random
from shardcore.backend import max_norm
from shardcore.ids import digests, own_arrays
from shardcore.ids import row_splits as offsets
from shardcore.sharding.layout import Layout
from shardcore.store import (
    asked_rows,
    bag_max,
    occurrences,
    scatter,
    segment_reduce,
    sorted_triples,
    update,
)

# Methods of Layout are told by their name only: a twin takes the sizes, a method its layout.
METHODS = {"locate", "partition", "decompose_slice"}
# `BagsToTake` takes those of several features, one after the other.
SEVERAL = {"take_bags"}
# What the kernels do to single elements, which no face shows.
ELEMENTS = {"widened", "narrowed", "stochastic_round"}
# Where to write and how to complain is no part of what a kernel means.
NOT_MEANING = {"out", "argument"}

FACES: tuple[ModuleType, ...] = (
    offsets,
    digests,
    own_arrays,
    segment_reduce,
    occurrences,
    asked_rows,
    sorted_triples,
    update,
    scatter,
    bag_max,
    max_norm,
    random,
)


def face_of(name: str) -> object:
    (face,) = {getattr(module, name) for module in FACES if hasattr(module, name)}
    return face


@pytest.mark.parametrize("name", sorted(set(reference.__all__) - METHODS - SEVERAL - ELEMENTS))
def test_a_twin_takes_what_its_face_takes(name: str) -> None:
    ours = inspect.signature(face_of(name)).parameters.values()  # type: ignore[arg-type]
    theirs = inspect.signature(getattr(reference, name)).parameters.values()
    filled = name in random.__dict__  # there the place to write is all that comes back
    left_out = set() if filled else NOT_MEANING
    expected = [(p.name, p.default) for p in ours if p.name not in left_out]
    if filled:
        expected = [(written.rstrip("_"), default) for written, default in _plain(expected)]
    assert [(p.name, p.default) for p in theirs] == expected


def _plain(parameters: list[tuple[str, object]]) -> list[tuple[str, object]]:
    """Return the parameters of a kernel without the axes that its names end in."""
    return [(name.split("__")[0], default) for name, default in parameters]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_twin_of_a_method_is_named_like_it(name: str) -> None:
    assert callable(getattr(Layout, name))
    assert callable(getattr(reference, name))


def test_every_kernel_of_offsets_and_store_has_a_twin() -> None:
    public = {
        name
        for module in FACES[:-1]
        for name in module.__all__
        if inspect.isfunction(getattr(module, name))
    }
    # Checks return what they are given, or a copy of it; `reduce_bags` and `reduce_bags_at` write
    # what `segment_reduce` returns; `every_row` and `updated` are NumPy around kernels that have
    # twins; `is_plain` is about dtypes only,
    # `has_few_rows` about sizes, and `rule_of` about optimizers.
    without = {
        "as_max_norm",
        "check_row_splits",
        "every_row",
        "has_few_rows",
        "immutable",
        "integers",
        "is_plain",
        "place_in",
        "reduce_bags",
        "reduce_bags_at",
        "rule_of",
        "updated",
    }
    assert public - without <= set(reference.__all__)

"""Structures of features: paths, order, what must match, and every message."""

from __future__ import annotations

import gc
import re
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.features.structure import flatten, flatten_like, is_feature, unflatten

TABLE = TableConfig(10, 4)


def feature() -> FeatureConfig:
    return FeatureConfig(TABLE)


def refuses(error: type[Exception], text: str):
    return pytest.raises(error, match="^" + re.escape(text))


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Item:
    genre: Any
    brand: Any
    cached: int = field(default=0, init=False)


class Frozen(Mapping):
    def __init__(self, entries):
        self._entries = dict(entries)

    def __getitem__(self, key):
        return self._entries[key]

    def __iter__(self):
        return iter(self._entries)

    def __len__(self):
        return len(self._entries)


def test_paths_and_order_are_the_structure_s_own():
    a, b, c, d, e, f, g = (feature() for _ in range(7))
    structure = {
        "user": {"clicks": [a, b], "age": c},
        0: (d,),
        "pair": Pair(e, right=f),
        "item": Item(genre=g, brand=a),
    }
    assert flatten(structure) == [
        ("features['user']['clicks'][0]", a),
        ("features['user']['clicks'][1]", b),
        ("features['user']['age']", c),
        ("features[0][0]", d),
        ("features['pair'].left", e),
        ("features['pair'].right", f),
        ("features['item'].genre", g),
        ("features['item'].brand", a),
    ]


def test_a_bare_feature_is_a_whole_structure():
    f = feature()
    assert flatten(f, what="weights") == [("weights", f)]
    assert flatten_like(f, [[1], [2]], "features") == [[[1], [2]]]
    assert unflatten(f, ["x"]) == "x"


def test_an_empty_structure_has_no_leaves():
    assert flatten({"a": []}) == []
    assert flatten_like({"a": []}, {"a": []}, "features") == []
    assert unflatten({"a": [], "b": ()}, []) == {"a": [], "b": ()}


def test_leaves_come_in_the_configured_order_and_may_be_containers():
    config = {"b": feature(), "a": [feature(), feature()]}
    other = {"a": [[[1], [2]], (3, 4)], "b": {"any": "thing"}}
    assert flatten_like(config, other, "features") == [{"any": "thing"}, [[1], [2]], (3, 4)]
    assert flatten_like(config, {"b": None, "a": [None, 1]}, "gradients") == [None, None, 1]


@pytest.mark.parametrize(
    "mapping", [dict, OrderedDict, MappingProxyType, Frozen, lambda m: defaultdict(list, m)]
)
def test_every_mapping_is_a_dict(mapping):
    f, g = feature(), feature()
    config = mapping({"x": f, "y": g})
    assert [leaf for _, leaf in flatten(config)] == [f, g]
    assert flatten_like(config, {"y": 2, "x": 1}, "features") == [1, 2]
    assert flatten_like({"y": g, "x": f}, mapping({"x": 1, "y": 2}), "features") == [2, 1]
    rebuilt = unflatten(config, [1, 2])
    assert type(rebuilt) is dict
    assert rebuilt == {"x": 1, "y": 2}


def test_keys_match_by_value():
    assert flatten_like({np.str_("a"): feature(), 1: feature()}, {"a": 1, np.int64(1): 2}, "f") == [
        1,
        2,
    ]


def test_fields_matter_not_the_class_of_what_is_given():
    class Other(NamedTuple):
        right: int
        left: int

    @dataclass
    class OtherItem:
        brand: int
        genre: int

    assert flatten_like(Pair(feature(), feature()), Other(right=2, left=1), "f") == [1, 2]
    assert flatten_like(Item(feature(), feature()), OtherItem(brand=2, genre=1), "f") == [1, 2]


def test_unflatten_keeps_classes_and_leaves_the_configuration_alone():
    config = {"pair": Pair(feature(), [feature()]), "item": Item(feature(), (feature(),))}
    rebuilt = unflatten(config, iter([1, 2, 3, 4]))
    assert rebuilt == {"pair": Pair(1, [2]), "item": Item(3, (4,))}
    assert type(rebuilt["pair"]) is Pair
    assert type(rebuilt["item"]) is Item
    assert all(is_feature(leaf) for _, leaf in flatten(config))


STRUCTURES = st.recursive(
    st.integers(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3),
        st.tuples(inner, inner).map(lambda entries: Pair(*entries)),
        st.tuples(inner, inner).map(lambda entries: Item(*entries)),
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(STRUCTURES)
def test_flatten_and_unflatten_are_inverse(structure):
    def is_leaf(x):
        return isinstance(x, int)

    pairs = flatten(structure, is_leaf)
    leaves = [leaf for _, leaf in pairs]
    assert unflatten(structure, leaves, is_leaf) == structure
    assert flatten_like(structure, structure, "features", is_leaf) == leaves
    assert len({path for path, _ in pairs}) == len(pairs)
    for path, leaf in pairs:
        assert eval(path, {"features": structure}) == leaf


# -- messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stranger", [7, "name", None, TABLE, Item])
def test_a_configuration_with_something_else(stranger):
    text = (
        "feature_config['a'][1] must be a FeatureConfig, or a dict, list, tuple, named tuple or "
        f"dataclass of them, got {stranger!r}"
    )
    with refuses(ShardcoreTypeError, text):
        flatten({"a": [feature(), stranger]}, what="feature_config")


@pytest.mark.parametrize(
    ("other", "error", "text"),
    [
        ({"user": {"clicks": [1]}, "pair": (1, 2)}, ShardcoreValueError,
         "features['user']['clicks'] must have 2 entries, as it is configured, got 1"),
        ({"user": {"clicks": [1, 2, 3]}, "pair": (1, 2)}, ShardcoreValueError,
         "features['user']['clicks'] must have 2 entries, as it is configured, got 3"),
        ({"user": {}, "pair": (1, 2)}, ShardcoreValueError,
         "features['user']['clicks'] is missing: it is configured"),
        ({"user": {"clicks": [1, 2], "klicks": 3}, "pair": (1, 2)}, ShardcoreValueError,
         "features['user']['klicks'] is not configured: features['user'] has ['clicks']"),
        ({"user": {"clicks": (1, 2)}, "pair": (1, 2)}, ShardcoreTypeError,
         "features['user']['clicks'] must be a list, as it is configured, got tuple"),
        ({"user": {"clicks": np.zeros(2)}, "pair": (1, 2)}, ShardcoreTypeError,
         "features['user']['clicks'] must be a list, as it is configured, got ndarray"),
        ({"user": {"clicks": [1, 2]}, "pair": [1, 2]}, ShardcoreTypeError,
         "features['pair'] must be a tuple, as it is configured, got list"),
        ({"user": {"clicks": [1, 2]}, "pair": Pair(1, 2)}, ShardcoreTypeError,
         "features['pair'] must be a tuple, as it is configured, got Pair"),
        ({"user": None, "pair": (1, 2)}, ShardcoreTypeError,
         "features['user'] must be a dict, as it is configured, got NoneType"),
        ([1, 2], ShardcoreTypeError, "features must be a dict, as it is configured, got list"),
    ],
)  # fmt: skip
def test_what_does_not_match(other, error, text):
    config = {"user": {"clicks": [feature(), feature()]}, "pair": (feature(), feature())}
    with refuses(error, text):
        flatten_like(config, other, "features")


def test_named_fields_that_do_not_match():
    class Triple(NamedTuple):
        left: int
        middle: int

    with refuses(ShardcoreTypeError, "f must be a named tuple, as it is configured, got tuple"):
        flatten_like(Pair(feature(), feature()), (1, 2), "f")
    with refuses(ShardcoreValueError, "f.right is missing: it is configured"):
        flatten_like(Pair(feature(), feature()), Triple(1, 2), "f")
    with refuses(ShardcoreTypeError, "f must be a dataclass, as it is configured, got dict"):
        flatten_like(Item(feature(), feature()), {"genre": 1, "brand": 2}, "f")
    with refuses(ShardcoreValueError, "f['a'] is not configured: f has no entry"):
        flatten_like({}, {"a": 1}, "f")


def test_leaves_that_are_too_few_or_too_many():
    for count in (1, 3):
        with refuses(
            ShardcoreValueError, f"leaves must be as many as the structure has, 2, got {count}"
        ):
            unflatten([feature(), feature()], range(count))


def test_nothing_is_held_until_the_garbage_collector_comes() -> None:
    leaf = np.zeros(3)
    known = weakref.ref(leaf)
    gc.disable()
    try:
        assert unflatten({"a": [1]}, [leaf], lambda x: x == 1)["a"][0] is leaf
        assert flatten({"a": [leaf]}, lambda x: isinstance(x, np.ndarray))[0][1] is leaf
        del leaf
        assert known() is None
    finally:
        gc.enable()

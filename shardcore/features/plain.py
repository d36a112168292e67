"""The commonest forms of features: plain arrays of ids, dense or beside row splits, all at once.

With a thousand tables the ways through the general forms take longer than the lookup.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.messages import FeatureBags
from shardcore.features.planned import FeatureInput
from shardcore.features.prepared import PreparedFeature
from shardcore.ids.own_arrays import immutable, is_plain
from shardcore.ids.ragged import Ragged
from shardcore.store.segment_reduce import divisors
from shardcore.store.taken_bags import BagsToTake

__all__ = [
    "PlainBags",
    "even_splits",
    "plain_bags",
    "plain_weights",
    "prepare_plain_features",
    "prepared_bags",
]

Ints = NDArray[np.int32] | NDArray[np.int64]

_SHARED_BAGS: Final = 1 << 16


def prepare_plain_features(
    features: Iterable[FeatureInput],
    leaves: Iterable[Any],
    weight_leaves: Iterable[Any],
    narrow: bool = False,
) -> list[PreparedFeature | None]:
    """Prepare the features that came as plain arrays without weights, ids all valid.

    They become what `prepare_features` makes of any other form.

    Parameters
    ----------
    features : iterable of FeatureInput
    leaves, weight_leaves : iterable
        As a caller gives them, one for each.
    narrow : bool
        As in `prepare_features`.

    Returns
    -------
    list of (PreparedFeature or None)
        None: for the general way, to prepare or to say what is wrong.

    Examples
    --------
    >>> from shardcore.features.config import FeatureConfig, TableConfig
    >>> feature = FeatureInput(FeatureConfig(TableConfig(10, 4)), "features", "weights", "t")
    >>> one, two = prepare_plain_features([feature] * 2, [np.array([1, 2]), [[1]]], [None] * 2)
    >>> one.bags.ids, two
    (array([1, 2]), None)
    """
    bags = BagsToTake()
    prepared: list[PreparedFeature | None] = []
    added: list[tuple[int, FeatureInput, PlainBags]] = []
    given = zip(features, leaves, weight_leaves, strict=True)
    for at, (feature, leaf, weight_leaf) in enumerate(given):
        prepared.append(None)
        if weight_leaf is not None or not feature.sums_rows:
            continue
        plain = plain_bags(leaf)
        if plain is not None:
            ids, row_splits, _, ids_shape = plain
            to_copy = row_splits if ids_shape is None else None
            if bags.add(ids, to_copy, feature.config.table.vocabulary_size, narrow):
                added.append((at, feature, plain))
    copies = bags.take()
    wrong = bags.wrong()
    for number, (at, feature, plain) in enumerate(added):
        if number not in wrong:
            prepared[at] = prepared_bags(feature, plain, *copies[number])
    return prepared


def prepared_bags(
    feature: FeatureInput, plain: PlainBags, ids: Ints, row_splits: NDArray[np.int64] | None
) -> PreparedFeature | None:
    """Return bags of copies that are right; None where their number is not that of an output shape.

    Without row splits of their own they are those of a dense array.
    """
    config, combiner, ids_shape = feature.config, feature.config.table.combiner, plain.ids_shape
    if row_splits is None:
        row_splits, shape = plain.row_splits, plain.batch_shape
        divisor = _dense_divisors(combiner, row_splits, ids.size, feature.value)
    else:  # of which there may be more or fewer than before they were added
        shape, divisor = (row_splits.size - 1,), None
        if combiner != "sum":  # which has none
            divisor = divisors(combiner, row_splits, None, feature.value)
    if config.output_shape is not None:
        if math.prod(config.output_shape) != math.prod(shape):
            return None
        shape = tuple(config.output_shape)
    bags = FeatureBags(ids, row_splits, None, divisor)
    return PreparedFeature(bags, shape, 0, None, None, None, ids_shape)


class PlainBags(NamedTuple):
    """The commonest forms of a feature: arrays, with nothing yet said of what they hold.

    Attributes
    ----------
    ids : ndarray
        Of any dtype and shape where they came beside row splits; of a dense array, flat.
    row_splits : ndarray
        As they were given, but not empty; of a dense array, ours.
    batch_shape : tuple of int
        Its product is the number of bags.
    ids_shape : tuple of int or None
        Of a dense array.
    """

    ids: NDArray[Any]
    row_splits: NDArray[Any]
    batch_shape: tuple[int, ...]
    ids_shape: tuple[int, ...] | None


def plain_bags(leaf: Any) -> PlainBags | None:
    """Return the bags of a dense array of ids, of ids and row splits, or of a `Ragged`; else None.

    Examples
    --------
    >>> plain_bags(np.array([[3, 1], [4, 4]]))[:3]
    (array([3, 1, 4, 4]), array([0, 2, 4]), (2,))
    >>> plain_bags([[3, 1], [4, 4]]) is None
    True
    """
    if type(leaf) is tuple and len(leaf) == 2:
        ids, row_splits = leaf
        if not type(ids) is type(row_splits) is np.ndarray or not row_splits.size:
            return None
        return PlainBags(ids, row_splits, (row_splits.size - 1,), None)
    if type(leaf) is Ragged and leaf.weights is None and leaf._given_order is None:
        return PlainBags(leaf.values, leaf.row_splits, (leaf.row_splits.size - 1,), None)
    if type(leaf) is not np.ndarray:
        return None
    shape = leaf.shape
    if not shape or not is_plain(leaf):
        return None
    width = 1 if len(shape) == 1 else shape[-1]
    batch_shape = shape if len(shape) == 1 else shape[:-1]
    bags = math.prod(batch_shape)
    ids = leaf.reshape(-1)
    if ids.size != bags * width:  # another thread has given it another shape
        return None
    return PlainBags(ids, even_splits(bags, width), batch_shape, shape)


def plain_weights(leaf: Any, bags: PlainBags) -> NDArray[Any] | None:
    """Return the weights of a leaf that is an array of one per id, or a `Ragged` like the ids.

    None: it is anything else. What the array holds is not looked at.

    Examples
    --------
    >>> bags = plain_bags((np.array([3, 1, 4]), np.array([0, 2, 3])))
    >>> plain_weights(Ragged(np.array([0.5, 1.0, 2.0]), [0, 2, 3]), bags)
    array([0.5, 1. , 2. ])
    >>> plain_weights(Ragged(np.array([0.5, 1.0, 2.0]), [0, 1, 3]), bags) is None
    True
    """
    if type(leaf) is Ragged:
        if leaf.weights is not None or leaf._given_order is not None:
            return None
        if not np.array_equal(leaf.row_splits, bags.row_splits):
            return None
        leaf = leaf.values
    if type(leaf) is not np.ndarray:
        return None
    if leaf.shape == bags.ids_shape:
        leaf = leaf.reshape(-1)
    return leaf if leaf.shape == bags.ids.shape else None


def even_splits(bags: int, width: int) -> NDArray[np.int64]:
    """Return the row splits of a dense array; of few bags read-only, as many features share them.

    Examples
    --------
    >>> even_splits(2, 3)
    array([0, 3, 6])
    """
    if bags <= _SHARED_BAGS:
        return _shared_splits(bags, width)
    return np.arange(bags + 1, dtype=np.int64) * width


@lru_cache(maxsize=16)
def _shared_splits(bags: int, width: int) -> NDArray[np.int64]:
    return immutable(np.arange(bags + 1, dtype=np.int64) * width)


def _dense_divisors(
    combiner: str, row_splits: NDArray[np.int64], ids: int, value: np.dtype[Any]
) -> NDArray[Any] | None:
    bags = row_splits.size - 1
    if bags > _SHARED_BAGS:
        return divisors(combiner, row_splits, None, value)
    return _even_divisors(combiner, bags, ids // max(bags, 1), value)


@lru_cache(maxsize=16)
def _even_divisors(
    combiner: str, bags: int, width: int, value: np.dtype[Any]
) -> NDArray[Any] | None:
    """Return the divisors of a dense array; None for bags of one id, which are divided by 1."""
    if width == 1:
        return None
    divisor = divisors(combiner, even_splits(bags, width), None, value)
    return None if divisor is None else immutable(divisor)

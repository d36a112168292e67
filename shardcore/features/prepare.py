"""From what a caller gives for one feature to checked bags over its table.

Here invalid ids meet their policy, sequences are cut and padded, weights take the working dtype and
every bag gets its divisor. A backend may trust the result: ids and row splits are copies that
were checked, which no caller can change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.messages import FeatureBags
from shardcore.errors import ShardcoreValueError
from shardcore.features.plain import prepare_plain_features
from shardcore.features.planned import FeatureInput, activation_shape
from shardcore.features.prepared import PreparedFeature
from shardcore.ids.formats import as_ragged, as_weights, dense_shape, named, placed_weights
from shardcore.ids.ragged import Ragged
from shardcore.ids.row_splits import lengths_from_row_splits, row_ids_from_row_splits
from shardcore.store.segment_reduce import divisors
from shardcore.store.taken_bags import take_ids_on_threads
from shardcore.validation.integers import outside

__all__ = ["prepare_feature", "prepare_features"]

Ints = NDArray[np.int32] | NDArray[np.int64]


def prepare_features(
    features: Sequence[FeatureInput],
    leaves: Sequence[Any],
    weight_leaves: Sequence[Any],
    keep: bool = False,
    narrow: bool = False,
) -> list[PreparedFeature]:
    """Check the input of several features, and turn each into bags, in their order.

    Parameters
    ----------
    features : sequence of FeatureInput
    leaves, weight_leaves : sequence
        One for each, in the forms of `shardcore.ids.formats`.
    keep : bool
        Whether the bags outlive the call: then weights share no memory with what the caller gave
        either, who may use his arrays again before the gradients come.
    narrow : bool
        Whether arrays of int64 may be copied in 32 bits, if all rows fit. Not where hosts send
        each other ids: what they send is counted as it was given.

    Returns
    -------
    list of PreparedFeature

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
        If an input breaks a rule.
    """
    found = []
    plain = prepare_plain_features(features, leaves, weight_leaves, narrow)
    for at, ready in enumerate(plain):
        if ready is None:
            ready = _prepared(features[at], leaves[at], weight_leaves[at], keep)
        found.append(ready)
    return found


def prepare_feature(
    feature: FeatureInput, leaf: Any, weights_leaf: Any, keep: bool = False
) -> PreparedFeature:
    """Check one feature's input and turn it into bags, as `prepare_features` does.

    Examples
    --------
    >>> from shardcore.features.config import FeatureConfig, TableConfig
    >>> config = FeatureConfig(TableConfig(10, 4, combiner="mean"))
    >>> feature = FeatureInput(config, "features", "weights", "t")
    >>> prepared = prepare_feature(feature, [[1, 2], []], None)
    >>> prepared.bags.divisors, prepared.shape
    (array([2., 0.], dtype=float32), (2,))
    """
    (prepared,) = prepare_features([feature], [leaf], [weights_leaf], keep)
    return prepared


def _prepared(feature: FeatureInput, leaf: Any, weights_leaf: Any, keep: bool) -> PreparedFeature:
    config, path, weights_path = feature.config, feature.path, feature.weights_path
    value = feature.value
    ragged, batch_shape = as_ragged(leaf, path, config.nulls, config.hash)
    ids_shape = dense_shape(leaf)
    with named(weights_path):
        weights_leaf = placed_weights(weights_leaf, leaf)
    weights = as_weights(weights_leaf, ragged, ids_shape, weights_path, value, keep)
    if config.max_sequence_length:
        if weights is not None:
            raise ShardcoreValueError(
                f"{weights_path}: weights are refused for a sequence, whose rows are not combined; "
                f"{path} has max_sequence_length = {config.max_sequence_length}"
            )
        bags, shape, invalid = _sequence(feature, ragged, batch_shape)
        return PreparedFeature(bags, shape, invalid, None, None, None, ids_shape)
    shape = activation_shape(feature, batch_shape)
    if config.table.combiner == "max":
        if weights is not None:
            raise ShardcoreValueError(
                f"{weights_path}: weights are refused for combiner 'max', which multiplies no row; "
                f"table {feature.table!r} of {path} has it"
            )
        bags, row_splits, invalid = _single_ids(feature, ragged)
        return PreparedFeature(bags, shape, invalid, None, None, None, ids_shape, row_splits)
    row_splits, combiner = ragged.row_splits, config.table.combiner
    ids, valid, invalid = _valid_ids(feature, ragged.values)
    # "zero" keeps the weight of an invalid id in the denominator, "drop" takes it out.
    weighed_splits, weighed = row_splits, weights
    if valid is not None:
        ids, row_splits = ids[valid], _splits_without(row_splits, valid)
        weights = None if weights is None else weights[valid]
        if config.invalid_ids == "drop":
            weighed_splits, weighed = row_splits, weights
    divisor = _finite_divisors(combiner, weighed_splits, weighed, value, weights_path)
    return PreparedFeature(
        FeatureBags(ids, row_splits, weights, divisor),
        shape,
        invalid,
        valid,
        None if weighed is None else (weighed_splits, weighed),
        ragged._given_order,
        ids_shape,
    )


def _finite_divisors(
    combiner: str,
    row_splits: NDArray[np.int64],
    weights: NDArray[Any] | None,
    value: np.dtype[Any],
    path: str,
) -> NDArray[Any] | None:
    if weights is None:  # counts of ids, always finite
        return divisors(combiner, row_splits, None, value)
    with np.errstate(over="ignore"):  # raised below, with the bag
        divisor = divisors(combiner, row_splits, weights, value)
    if divisor is not None:
        finite = np.isfinite(divisor)
        if not finite.all():
            raise ShardcoreValueError(
                f"{path}: the weights of bag {int(np.argmin(finite))} are too large: "
                f"the divisor of combiner {combiner!r} does not fit {value}"
            )
    return divisor


def _valid_ids(feature: FeatureInput, ids: Ints) -> tuple[Ints, NDArray[np.bool_] | None, int]:
    """Return a copy of the ids, which to keep (None: all), and how many were invalid."""
    config = feature.config
    rows = config.table.vocabulary_size
    own, bad = take_ids_on_threads(ids, rows)
    if bad < 0:
        return own, None, 0
    policy = config.invalid_ids
    if policy == "raise":
        raise outside(f"{feature.path}: ids[{bad}]", own[bad], f"table {feature.table!r}", rows)
    ids = ids.copy()  # what was taken ends with the first invalid id
    valid = (ids >= 0) & (ids < rows)
    invalid = int(ids.size - np.count_nonzero(valid))
    if policy in ("drop", "zero"):
        return ids, valid, invalid
    wide = ids.astype(np.int64, copy=False)  # the row put in may not fit int32
    if policy == "clip":
        return np.clip(wide, 0, rows - 1), None, invalid
    return np.where(valid, wide, np.int64(policy)), None, invalid


def _splits_without(row_splits: NDArray[np.int64], valid: NDArray[np.bool_]) -> NDArray[np.int64]:
    kept_before = np.zeros(valid.size + 1, np.int64)
    np.cumsum(valid, out=kept_before[1:])
    return kept_before[row_splits]


def _single_ids(
    feature: FeatureInput, ragged: Ragged
) -> tuple[FeatureBags, NDArray[np.int64], int]:
    """Return a bag per occurrence, holding its id, and the row_splits of the bags given."""
    ids, valid, invalid = _valid_ids(feature, ragged.values)
    row_splits = ragged.row_splits
    if valid is not None and feature.config.invalid_ids == "drop":
        ids, row_splits, valid = ids[valid], _splits_without(row_splits, valid), None
    single = np.arange(ids.size + 1, dtype=np.int64)
    if valid is not None:  # "zero": a row of zeros among those of the bag
        ids, single = ids[valid], _splits_without(single, valid)
    return FeatureBags(ids, single), row_splits, invalid


def _sequence(
    feature: FeatureInput, ragged: Ragged, batch_shape: tuple[int, ...]
) -> tuple[FeatureBags, tuple[int, ...], int]:
    """Return a bag per position, holding the id there or nothing, and the shape of them all."""
    config = feature.config
    length = config.max_sequence_length
    ids, valid, invalid = _valid_ids(feature, ragged.values)
    row_splits = ragged.row_splits
    if valid is not None and config.invalid_ids == "drop":  # later ids move up
        ids, row_splits, valid = ids[valid], _splits_without(row_splits, valid), None
    sample = row_ids_from_row_splits(row_splits)
    position = np.arange(ids.size) - row_splits[sample]
    used = position < length
    if valid is not None:  # "zero": the position stays, empty
        used &= valid
    samples = lengths_from_row_splits(row_splits).size
    counts = np.zeros(samples * length, np.int64)
    counts[sample[used] * length + position[used]] = 1
    per_position = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=per_position[1:])
    bags = FeatureBags(ids[used], per_position, bags_per_sample=length)
    return bags, activation_shape(feature, batch_shape), invalid

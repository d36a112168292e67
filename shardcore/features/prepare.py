"""From what a caller gives for one feature to checked bags over its table.

Here invalid ids meet their policy, sequences are cut and padded, weights take the working dtype and
every bag gets its divisor. A backend may trust the result: ids and row splits are copies that
were checked, which no caller can change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcore._core import offsets as _offsets
from shardcore.backend.messages import FeatureBags, TableSpec
from shardcore.dtypes import working_dtype
from shardcore.errors import ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.ids.formats import as_ragged, as_weights, dense_shape, named, placed_weights
from shardcore.ids.own_arrays import FEW_IDS, immutable, is_plain, take_bags
from shardcore.ids.ragged import Ragged
from shardcore.ids.row_splits import lengths_from_row_splits, row_ids_from_row_splits
from shardcore.store.few_bags import DIVIDED
from shardcore.store.segment_reduce import divisors, weight_gradients
from shardcore.store.taken_ids import take_ids_on_threads, take_narrow_ids
from shardcore.validation.integers import outside

__all__ = ["FeatureInput", "PlainBags", "PlannedFeature", "PreparedFeature"]
__all__ += ["activation_shape", "plain_bags", "plain_weights", "plan_features"]
__all__ += ["prepare_feature"]

Ints = NDArray[np.int32] | NDArray[np.int64]

_INT64: Final = np.dtype(np.int64)
_SHARED_BAGS: Final = 1 << 16
_fused: Any = _offsets.take_splits
_take_splits: Final = _fused["int64_t"]  # chosen once: that takes longer than to take a few


@dataclass(frozen=True, eq=False)
class FeatureInput:
    """How one feature's input is read, and what messages call it.

    Attributes
    ----------
    config : FeatureConfig
    path, weights_path : str
        Its places in the structures that the caller gives; every message begins with one.
    table : str
        The name of its table.
    """

    config: FeatureConfig
    path: str
    weights_path: str
    table: str


@dataclass(frozen=True, eq=False)
class PlannedFeature(FeatureInput):
    """A feature of an engine, with what is asked of it for every batch.

    Attributes
    ----------
    gradient_path : str
        Its place in the structure of gradients.
    spec : TableSpec
        Its table.
    value : numpy.dtype
        The table's working dtype.
    divided : int or None
        The combiner, of `shardcore.store.DIVIDED`, where plain bags without weights need nothing
        but that their rows be combined. None: more is to be done.
    """

    gradient_path: str
    spec: TableSpec
    value: np.dtype[Any]
    divided: int | None


def plan_features(
    features: Sequence[tuple[str, FeatureConfig]], specs: Mapping[TableConfig, TableSpec]
) -> list[PlannedFeature]:
    """Return the features of an engine, given with their paths, beside their tables."""
    planned = []
    for path, config in features:
        place, spec = path.removeprefix("features"), specs[config.table]
        planned.append(
            PlannedFeature(
                config,
                path,
                "weights" + place,
                spec.name,
                "gradients" + place,
                spec,
                working_dtype(spec.dtype),
                _divided(config, spec),
            )
        )
    return planned


def _divided(config: FeatureConfig, spec: TableSpec) -> int | None:
    special = (
        not spec.seen_as_stored
        or config.hash is not None
        or config.max_sequence_length
        or config.output_shape is not None
        or config.invalid_ids != "raise"
    )
    return None if special else DIVIDED.get(config.table.combiner)


@dataclass(eq=False, slots=True)
class PreparedFeature:
    """One feature of one batch, ready for a backend.

    Attributes
    ----------
    bags : FeatureBags
    shape : tuple of int
        Of the activations, without the last axis.
    invalid : int
        Ids that the policy dealt with.
    kept : ndarray of bool, shape (ids given,), or None
        Which of the ids in bag order are in `bags`; None: all.
    weighed : (row_splits, weights) or None
        The ids whose weights the divisors count, in bag order: those of `bags`, and with the policy
        "zero" also the invalid ones. None: no weights were given.
    given_order : ndarray of int64, or None
        Where each id in bag order stood as it was given; None: the same place.
    ids_shape : tuple of int, or None
        Shape of ids that came as a dense array.
    max_splits : ndarray of int64, or None
        Of combiner "max": the row_splits of bags, of whose rows the greatest values are taken. Then
        `bags` are of one id each, or of none where an invalid id stands for a row of zeros.
    """

    bags: FeatureBags
    shape: tuple[int, ...]
    invalid: int
    kept: NDArray[np.bool_] | None
    weighed: tuple[NDArray[np.int64], NDArray[Any]] | None
    given_order: NDArray[np.int64] | None
    ids_shape: tuple[int, ...] | None
    max_splits: NDArray[np.int64] | None = None

    def weight_gradient(self, combiner: str, dots: NDArray[Any]) -> NDArray[Any] | None:
        """Return the gradients of the weights as they were given, None where none were.

        Parameters
        ----------
        combiner : {"sum", "mean", "sqrtn"}
        dots : ndarray, shape (ids in `bags`,)
            Each id's row times its bag's gradient.
        """
        if self.weighed is None:
            return None
        row_splits, weights = self.weighed
        if weights.size != dots.size:  # "zero": invalid ids have rows of zeros, and their weights
            dots = self._among_given(dots)
        full = weight_gradients(combiner, dots, row_splits, weights, self.bags.divisors)
        if self.kept is not None and full.size != self.kept.size:  # "drop": not in the result
            full = self._among_given(full)
        if self.given_order is not None:
            in_bags, full = full, np.empty_like(full)
            full[self.given_order] = in_bags
        return full if self.ids_shape is None else full.reshape(self.ids_shape)

    def _among_given(self, of_kept: NDArray[Any]) -> NDArray[Any]:
        """Return values of the kept ids with zeros for the others between them."""
        assert self.kept is not None, "all ids are kept"
        full = np.zeros(self.kept.size, of_kept.dtype)
        full[self.kept] = of_kept
        return full


def prepare_feature(
    feature: FeatureInput, leaf: Any, weights_leaf: Any, keep: bool = False, narrow: bool = False
) -> PreparedFeature:
    """Check one feature's input and turn it into bags.

    Parameters
    ----------
    feature : FeatureInput
    leaf, weights_leaf : as in `shardcore.ids.formats`
    keep : bool
        Whether the bags outlive the call: then weights share no memory with what the caller gave
        either, who may use his arrays again before the gradients come.
    narrow : bool
        Whether arrays of int64 may be copied in 32 bits, if all rows fit. Not where hosts send
        each other ids: what they send is counted as it was given.

    Returns
    -------
    PreparedFeature

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
        If the input breaks a rule.

    Examples
    --------
    >>> from shardcore.features.config import TableConfig
    >>> config = FeatureConfig(TableConfig(10, 4, combiner="mean"))
    >>> feature = FeatureInput(config, "features", "weights", "t")
    >>> prepared = prepare_feature(feature, [[1, 2], []], None)
    >>> prepared.bags.divisors, prepared.shape
    (array([2., 0.], dtype=float32), (2,))
    """
    config, path, weights_path = feature.config, feature.path, feature.weights_path
    if weights_leaf is None and not config.max_sequence_length and config.hash is None:
        plain = _plain_feature(feature, leaf, narrow)
        if plain is not None:
            return plain
    value = _value_of(config)
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


def _value_of(config: FeatureConfig) -> np.dtype[Any]:
    return working_dtype(np.dtype(config.table.dtype))


def _plain_feature(feature: FeatureInput, leaf: Any, narrow: bool) -> PreparedFeature | None:
    """Return what the commonest input comes to: unweighted arrays as they should be, ids all valid.

    It is what `prepare_feature` would make of it, by a shorter way: with a thousand tables the ways
    through the general forms take longer than the lookup. None: for the long way to say or do.
    """
    config = feature.config
    if config.table.combiner == "max":
        return None
    divisor: NDArray[Any] | None = None
    taken: tuple[Ints, NDArray[np.int64]] | None = None
    rows, combiner = config.table.vocabulary_size, config.table.combiner
    plain = plain_bags(leaf)
    if plain is None:
        return None
    given, row_splits, batch_shape, ids_shape = plain
    if ids_shape is not None:
        bags = row_splits.size - 1
        if bags <= _SHARED_BAGS:
            divisor = _even_divisors(combiner, bags, given.size // max(bags, 1), _value_of(config))
        else:
            divisor = divisors(combiner, row_splits, None, _value_of(config))
    else:
        splits = row_splits
        if given.size <= FEW_IDS:
            taken = take_bags(given, splits, rows)
            if taken is None:
                return None
            row_splits = taken[1]
        else:
            if not (given.ndim == splits.ndim == 1 and is_plain(given) and is_plain(splits)):
                return None
            if splits.dtype != _INT64:
                return None
            row_splits = np.empty(splits.size, np.int64)
            if _take_splits(splits, given.size, row_splits) >= 0:
                return None
        if combiner != "sum":  # which has none; to find the dtype takes longer than to ask
            divisor = divisors(combiner, row_splits, None, _value_of(config))
    if taken is not None:
        ids = taken[0]
    else:
        ids, bad = (take_narrow_ids if narrow else take_ids_on_threads)(given, rows)
        if bad >= 0:
            return None
    shape = activation_shape(feature, batch_shape)
    bags_of_ids = FeatureBags(ids, row_splits, None, divisor)
    return PreparedFeature(bags_of_ids, shape, 0, None, None, None, ids_shape)


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
    """Return the bags of a leaf that is a dense array of ids, or ids and row splits; else None.

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
    if bags <= _SHARED_BAGS:
        return PlainBags(ids, _even_splits(bags, width), batch_shape, shape)
    return PlainBags(ids, np.arange(bags + 1, dtype=np.int64) * width, batch_shape, shape)


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


@lru_cache(maxsize=16)
def _even_splits(bags: int, width: int) -> NDArray[np.int64]:
    """Return the row_splits of a dense array, read-only, as many features share it."""
    return immutable(np.arange(bags + 1, dtype=np.int64) * width)


@lru_cache(maxsize=16)
def _even_divisors(
    combiner: str, bags: int, width: int, value: np.dtype[Any]
) -> NDArray[Any] | None:
    """Return the divisors of a dense array; None for bags of one id, which are divided by 1."""
    if width == 1:
        return None
    divisor = divisors(combiner, _even_splits(bags, width), None, value)
    return None if divisor is None else immutable(divisor)


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


def activation_shape(feature: FeatureInput, batch_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a feature's activations, without the last axis.

    Parameters
    ----------
    feature : FeatureInput
    batch_shape : tuple of int
        Its product is the number of bags.

    Raises
    ------
    ShardcoreValueError
        If the feature has an output shape of another size.

    Examples
    --------
    >>> from shardcore.features.config import TableConfig
    >>> config = FeatureConfig(TableConfig(10, 4), max_sequence_length=3)
    >>> activation_shape(FeatureInput(config, "features", "weights", "t"), (2,))
    (2, 3)
    """
    config = feature.config
    length = config.max_sequence_length
    shape = (*batch_shape, length) if length else batch_shape
    if config.output_shape is None:
        return shape
    given = tuple(config.output_shape)
    if math.prod(given) != math.prod(shape):
        raise ShardcoreValueError(
            f"{feature.path}: output_shape {given} must hold as many vectors as there are "
            f"{'positions' if length else 'bags'}, {math.prod(shape)}, got {math.prod(given)}"
        )
    return given


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

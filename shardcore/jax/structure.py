"""What a caller gives and gets, per feature, as far as it is known before arrays hold values.

Under `jax.jit` there are shapes and dtypes only. All that breaks a rule by them raises while the
program is traced, in the caller's line; ids and row_splits are checked by the engine when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jax
import numpy as np

from shardcore.engine.embedding import ShardedEmbedding
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, shown
from shardcore.features.planned import PlannedFeature, activation_shape
from shardcore.ids.ragged import Ragged
from shardcore.jax.ragged import ragged_of

__all__ = ["Batch", "Structure"]

Batch = tuple[list[Any], list[Any], list[Any]]
"""Per feature: ids, an array or a `Ragged`; weights as an array, or None; their row_splits, if any.

A pytree. The weights are apart, as they alone can be differentiated.
"""

_FORMS: Final = (
    "an array of shape (batch,) or (batch, ids per bag), a sc.Ragged "
    "or a tuple (values, row_splits)"
)
_ROWS_OF_INT32: Final = 1 << 31


class Structure:
    """The features of one engine.

    Parameters
    ----------
    engine : ShardedEmbedding

    Attributes
    ----------
    features : list of PlannedFeature

    Examples
    --------
    >>> import shardcore as sc
    >>> clicks = sc.FeatureConfig(sc.TableConfig(5, 2), max_sequence_length=3)
    >>> structure = Structure(sc.ShardedEmbedding({"clicks": clicks}))
    >>> ids, _, _ = structure.read({"clicks": np.array([[1, 2], [4, 0]])}, None)
    >>> structure.activations(ids)
    [ShapeDtypeStruct(shape=(2, 3, 2), dtype=float32)]
    """

    def __init__(self, engine: ShardedEmbedding) -> None:
        self._inputs = engine.inputs  # read as the engine reads: one set of rules and of messages
        self.features: Sequence[PlannedFeature] = self._inputs.features

    def nested(self, leaves: Sequence[Any]) -> Any:
        """Return what there is per feature in the structure of the configuration."""
        return self._inputs.nested(leaves)

    def flat(self, activations: Any) -> list[Any]:
        """Undo `nested`."""
        return self._inputs.leaves(activations, "activations")

    def read(self, features: Any, weights: Any) -> Batch:
        """Return a batch as it goes through JAX.

        Parameters
        ----------
        features, weights : the structure of the configuration
            Of arrays, or of what stands for them.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If the structure is another one, or a leaf has a form, dtype or rank that is not taken.
        """
        given = self._inputs.leaves(features, "features")
        given_weights = self._inputs.optional_leaves(weights, "weights")
        ids: list[Any] = []
        values: list[Any] = []
        splits: list[Any] = []
        for feature, leaf, weight in zip(self.features, given, given_weights, strict=True):
            own = _ids(feature, leaf)
            if weight is None and isinstance(own, Ragged) and own.weights is not None:
                weight = own.weights
                own = ragged_of(own.values, own.row_splits, None, own._given_order)
            of_bags = isinstance(weight, Ragged)
            ids.append(own)
            splits.append(weight.row_splits if of_bags else None)
            values.append(_weights(feature, weight.values if of_bags else weight))
        return ids, values, splits

    def activations(self, ids: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
        """Return shape and dtype of the activations per feature.

        Raises
        ------
        ShardcoreValueError
            If an output shape does not fit, or JAX has no float64 unless told to.
        """
        found = []
        for feature, leaf in zip(self.features, ids, strict=True):
            if feature.value == np.float64 and not jax.config.jax_enable_x64:
                raise ShardcoreValueError(
                    f"{feature.path}: activations of table {feature.table!r} are float64, which "
                    "JAX has only after jax.config.update('jax_enable_x64', True)"
                )
            shape = activation_shape(feature, _batch_shape(leaf))
            found.append(jax.ShapeDtypeStruct((*shape, feature.spec.dim), feature.value))
        return found

    def for_engine(self, batch: Batch) -> tuple[Any, Any]:
        """Return features and weights as the engine takes them."""
        ids, values, splits = batch
        weights = [
            value if bags is None else ragged_of(value, bags)
            for value, bags in zip(values, splits, strict=True)
        ]
        return self.nested(ids), self.nested(weights)


def _ids(feature: PlannedFeature, leaf: Any) -> Any:
    path = feature.path
    if isinstance(leaf, tuple) and len(leaf) == 2:
        leaf = ragged_of(*leaf)
    if isinstance(leaf, Ragged):
        for name in ("values", "row_splits"):
            array = getattr(leaf, name)
            if not _is_array(array):
                raise ShardcoreTypeError(f"{path}: {name} must be an array, got {shown(array)}")
            if array.ndim != 1:
                raise ShardcoreValueError(
                    f"{path}: {name} must have rank 1, got shape {array.shape}"
                )
            _check_integers(array, f"{path}: {name}")
        if not leaf.row_splits.size:
            raise ShardcoreValueError(
                f"{path}: row_splits must hold at least one entry, the leading 0"
            )
        _check_width(feature, leaf.values)
        return leaf
    if not _is_array(leaf):
        raise ShardcoreTypeError(
            f"{path}: ids must be {_FORMS}, got {type(leaf).__name__}; "
            "sc.Ragged.from_lists makes one of a list of bags"
        )
    if leaf.ndim == 0:
        raise ShardcoreTypeError(f"{path}: ids must be {_FORMS}, got a scalar")
    _check_integers(leaf, f"{path}: ids")
    _check_width(feature, leaf)
    return leaf


def _weights(feature: PlannedFeature, leaf: Any) -> Any:
    if leaf is not None and not _is_array(leaf):
        raise ShardcoreTypeError(
            f"{feature.weights_path}: weights must be None, a sc.Ragged of floats, or an array "
            f"aligned with the ids, got {type(leaf).__name__}"
        )
    return leaf


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | jax.Array)


def _check_integers(array: Any, name: str) -> None:
    if array.size and array.dtype.kind not in "iu":  # without any, the engine asks for no dtype
        raise ShardcoreTypeError(f"{name} must be integers, got dtype {array.dtype}")


def _check_width(feature: PlannedFeature, ids: Any) -> None:
    """Raise where 32 bits do not hold what ids are, or may be, and JAX has no more."""
    if jax.config.jax_enable_x64:
        return
    told = "unless jax.config.update('jax_enable_x64', True)"
    if feature.spec.num_rows > _ROWS_OF_INT32:
        raise ShardcoreValueError(
            f"{feature.path}: ids of int32 cannot name all of the {feature.spec.num_rows} rows of "
            f"table {feature.table!r}, and JAX cuts others to it {told}"
        )
    if isinstance(ids, np.ndarray) and ids.dtype.itemsize > 4:
        cut = ids.astype(np.int32) != ids
        if cut.any():
            at = int(np.argmax(cut))
            raise ShardcoreValueError(
                f"{feature.path}: ids[{at}] = {ids.reshape(-1)[at]} does not fit int32, to which "
                f"JAX cuts ids {told}"
            )


def _batch_shape(ids: Any) -> tuple[int, ...]:
    if isinstance(ids, Ragged):
        return (ids.row_splits.shape[0] - 1,)
    shape = tuple(map(int, ids.shape))
    return shape if len(shape) == 1 else shape[:-1]

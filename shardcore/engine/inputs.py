"""The structure of an engine's features: what a caller gives, checked and cut by table."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any

from shardcore.backend.messages import TableBatch
from shardcore.engine.in_flight import PreparedBatch
from shardcore.engine.tables import PlannedTable
from shardcore.errors import ShardcoreValueError
from shardcore.features.config import FeatureConfig
from shardcore.features.frames import read_frames
from shardcore.features.planned import PlannedFeature, plan_features
from shardcore.features.prepare import prepare_features
from shardcore.features.prepared import PreparedFeature
from shardcore.features.structure import flatten_like, is_feature, unflatten

__all__ = ["Inputs"]


class Inputs:
    """How an engine reads features, weights and gradients, and arranges what it returns.

    Parameters
    ----------
    feature_config : structure of FeatureConfig
    features : list of (path, FeatureConfig)
        It, flattened.
    tables : list of PlannedTable
        The engine's own list, which a restore changes in place.
    one_host : bool
        Whether no host sends ids to another, so that none counts their bytes.

    Attributes
    ----------
    features : list of PlannedFeature
    batch_size : int or None
        The first axis of every batch; None: any.
    single : bool
        Whether the structure is one feature.
    one_host : bool
    special : bool
        Whether with rows of some feature more is to be done than to combine them.
    """

    def __init__(
        self,
        feature_config: Any,
        features: Sequence[tuple[str, FeatureConfig]],
        tables: list[PlannedTable],
        one_host: bool,
    ) -> None:
        # Containers of our own: the caller may change his.
        self._structure = unflatten(feature_config, [config for _, config in features])
        self._keys: tuple[Any, ...] | None = None
        self._kind: Any = None  # its type, if it holds nothing but features
        kind = type(self._structure)
        if kind is dict and all(map(is_feature, self._structure.values())):
            self._kind, self._keys = kind, tuple(self._structure)
        elif kind in (list, tuple) and all(map(is_feature, self._structure)):
            self._kind = kind
        self.single = is_feature(self._structure)
        self._tables = tables
        self.features: list[PlannedFeature] = plan_features(
            features, {table.config: table.spec for table in tables}
        )
        self.special = any(feature.divided is None for feature in self.features)
        self.batch_size: int | None = None
        self.one_host = one_host

    def leaves(self, given: Any, what: str) -> list[Any]:
        """Return what a caller gives per feature."""
        found = self.flat_leaves(given)
        if found is not None:
            return found
        if self.single:
            return [given]
        return flatten_like(self._structure, given, what)

    def flat_leaves(self, given: Any) -> list[Any] | None:
        """Return what a dict, list or tuple of features, the usual structures, holds for each.

        Without the paths of the general way. None: the structure is another, or `given` has not
        the same entries, or is one feature.
        """
        if type(given) is not self._kind:
            return None
        keys = self._keys
        if keys is None:
            return list(given) if len(given) == len(self._structure) else None
        return [given[key] for key in keys] if given.keys() == self._structure.keys() else None

    def optional_leaves(self, given: Any, what: str) -> list[Any]:
        """Return what a caller gives per feature; None for all stands for None in each."""
        return [None] * len(self.features) if given is None else self.leaves(given, what)

    def nested(self, leaves: Sequence[Any]) -> Any:
        """Return what there is per feature in the structure of the features."""
        if self._keys is not None:
            return dict(zip(self._keys, leaves, strict=True))
        if self._kind is not None:
            return self._kind(leaves)
        if self.single:
            return leaves[0]
        return unflatten(self._structure, leaves)

    def batch(self, features: Any, weights: Any, training: bool, keep: bool) -> PreparedBatch:
        """Check a batch and cut it by table.

        Parameters
        ----------
        features, weights : as a caller gives them
        training : bool
            Whether gradients will follow.
        keep : bool
            As in `prepare_features`.
        """
        prepared = self._prepared(features, weights, keep)
        tables = [
            TableBatch(
                table.spec.name,
                tuple([prepared[at].bags for at in table.features]),
                training and table.spec.optimizer is not None,
            )
            for table in self._tables
        ]
        return PreparedBatch(prepared, tables)

    def _prepared(self, features: Any, weights: Any, keep: bool) -> list[PreparedFeature]:
        if not self.single and not self._is_plain(features, weights):
            features, weights = read_frames(self._structure, features, weights)
        leaves = self.leaves(features, "features")
        weight_leaves = self.optional_leaves(weights, "weights")
        prepared = prepare_features(self.features, leaves, weight_leaves, keep, self.one_host)
        if self.batch_size is not None:
            for feature, ready in zip(self.features, prepared, strict=True):
                self._check_batch_size(ready, feature.path)
        return prepared

    def _is_plain(self, features: Any, weights: Any) -> bool:
        """Return whether features are flat, and given as they are: so no frame can be there."""
        kind = self._kind
        return kind is not None and type(features) is kind and type(weights) in (kind, NoneType)

    def _check_batch_size(self, ready: PreparedFeature, path: str) -> None:
        samples = ready.shape[0] if ready.shape else 1
        if samples != self.batch_size:
            raise ShardcoreValueError(
                f"{path} must have the batch size given to build, {self.batch_size}, got {samples}"
            )

"""The features of an engine, as its messages call them and as every batch of it finds them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardcore.backend.messages import TableSpec
from shardcore.cached_property import cached_property
from shardcore.dtypes import working_dtype
from shardcore.errors import ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.store.given_bags import DIVIDED

__all__ = ["FeatureInput", "PlannedFeature", "activation_shape", "plan_features"]


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

    @cached_property
    def value(self) -> np.dtype[Any]:
        """The table's working dtype."""
        return working_dtype(np.dtype(self.config.table.dtype))

    @cached_property
    def sums_rows(self) -> bool:
        """Whether ids name the rows of a bag as they are, and these are added: sum, mean, sqrtn."""
        config = self.config
        other = config.max_sequence_length or config.hash is not None
        return not other and config.table.combiner != "max"


@dataclass(frozen=True, eq=False)
class PlannedFeature(FeatureInput):
    """A feature of an engine, with what is asked of it for every batch.

    Attributes
    ----------
    gradient_path : str
        Its place in the structure of gradients.
    spec : TableSpec
        Its table.
    divided : int or None
        The combiner, of `shardcore.store.DIVIDED`, where plain bags without weights need nothing
        but that their rows be combined. None: more is to be done.
    """

    gradient_path: str
    spec: TableSpec
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

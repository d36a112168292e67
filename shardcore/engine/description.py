"""The whole configuration of an engine as plain data: what was decided, defaults included."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardcore.engine.tables import PlannedTable
from shardcore.features.config import FeatureConfig
from shardcore.initializers.distributions import TruncatedNormal
from shardcore.optimizer.hyperparameters import callable_name

__all__ = ["described_feature", "described_table"]


def described_table(
    table: PlannedTable, features: Sequence[tuple[str, FeatureConfig]]
) -> dict[str, Any]:
    """Return a table in terms of JSON.

    Parameters
    ----------
    table : PlannedTable
    features : sequence of (path, FeatureConfig)
        Of the engine.
    """
    config, spec = table.config, table.spec
    quantization = spec.quantization
    return {
        "name": spec.name,
        "named": table.named,
        "rows": spec.num_rows,
        "dim": spec.dim,
        "dtype": spec.dtype.name,
        "combiner": config.combiner,
        "initializer": _described_initializer(config.initializer),
        "seed": spec.seed,
        "layout": spec.layout,
        "placement": spec.placement,
        "exchange": spec.exchange,
        "quantization": None
        if quantization is None
        else {
            "num_buckets": quantization.num_buckets,
            "lower": quantization.lower,
            "upper": quantization.upper,
        },
        "max_norm": spec.max_norm,
        "optimizer": None if spec.optimizer is None else spec.optimizer.description(),
        "features": [features[at][0] for at in table.features],
    }


def described_feature(path: str, feature: FeatureConfig, table: str) -> dict[str, Any]:
    """Return a feature in terms of JSON."""
    shape = feature.output_shape
    return {
        "path": path,
        "name": feature.name,
        "table": table,
        "max_sequence_length": feature.max_sequence_length,
        "output_shape": None if shape is None else list(shape),
        "invalid_ids": feature.invalid_ids,
        "nulls": feature.nulls,
        "hash": None if feature.hash is None else dataclasses.asdict(feature.hash),
    }


def _described_initializer(initializer: Any) -> str:
    if initializer is None:
        return repr(TruncatedNormal())
    if isinstance(initializer, np.ndarray):
        return f"array of shape {initializer.shape}, {initializer.dtype}"
    if dataclasses.is_dataclass(initializer):
        return repr(initializer)
    return callable_name(initializer)

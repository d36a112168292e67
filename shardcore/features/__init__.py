"""Tables and features: their configuration, and a batch of their ids.

::

    config      `TableConfig`, `FeatureConfig`, and the names of tables
    structure   nested structures of features, flattened and rebuilt
    frames      data frames in place of a dict of features
    planned     the features of an engine, and the names of their input in messages
    prepared    one feature of one batch, as it was checked
    plain       the commonest input as checked bags, all features at once
    prepare     any input as checked bags
"""

from __future__ import annotations

from shardcore.features.config import FeatureConfig, TableConfig

__all__ = ["TableConfig", "FeatureConfig"]

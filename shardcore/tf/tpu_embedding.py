"""The configuration of a ``TPUEmbedding`` as an engine; what has no counterpart, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import tensorflow as tf

from shardcore import optimizers
from shardcore.backend.quantization import QuantizationConfig
from shardcore.engine.embedding import ShardedEmbedding
from shardcore.errors import ShardcoreError, ShardcoreTypeError, shown
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.features.structure import flatten, unflatten
from shardcore.optimizer.base import Optimizer

__all__ = ["from_tpu_embedding"]

_TPU: Final = tf.tpu.experimental.embedding
_CUSTOM_COMBINER: Final = getattr(_TPU, "CustomCombiner", ())  # TensorFlow 2.18 has none

_OPTIMIZERS: Final = ("SGD", "Adagrad", "AdagradMomentum", "FTRL", "Adam")

_INSTEAD: Final[Mapping[str, str]] = {
    "CustomOptimizer": "write shardcore.optimizers.Custom(computation, learning_rate)",
    "CustomCombiner": "give the feature max_sequence_length=, and combine its rows in the model",
    "slot_variable_creation_fn": "slots begin with slot_initial_values= of a shardcore optimizer",
    "low_dimensional_packing_status": "leave it out: rows are not packed, whatever their length",
    "validate_weights_and_indices": "leave it out: what is given is always checked",
    "output_shape": "give the length of every axis, or none",
    "layout": "layout= and placement= of shardcore.TableConfig say where rows lie",
    "dtype": "tables hold floats; count in another structure",
    "pipeline_execution_with_tensor_core": "give pipeline=True",
    "sparse_core_embedding_config": "leave it out: tables need no stacking, and no id is dropped",
}
"""The options that an engine lacks, and what is done instead."""


def from_tpu_embedding(
    feature_config: Any,
    optimizer: Any = None,
    pipeline_execution_with_tensor_core: bool = False,
    sparse_core_embedding_config: Any = None,
    **options: Any,
) -> ShardedEmbedding:
    """Make an engine of what a ``TPUEmbedding`` is made of; nothing given is changed.

    Parameters
    ----------
    feature_config : FeatureConfig of TensorFlow, or nested dicts, lists, tuples, … of them
    optimizer : optimizer of ``tf.tpu.experimental.embedding``, or of shardcore, optional
        For tables that have none of their own.
    pipeline_execution_with_tensor_core, sparse_core_embedding_config
        Refused where they are set.
    **options
        Of `shardcore.ShardedEmbedding`: ``backend``, ``pipeline``, ``seed``, ….

    Returns
    -------
    ShardedEmbedding
        With the same tables, names, combiners, initial distributions, and arithmetic of updates.

    Raises
    ------
    ShardcoreTypeError
        If something is of another kind, or an option is set that an engine lacks: the message names
        it, and what is done instead.
    ShardcoreTypeError, ShardcoreValueError
        If a value is one that shardcore refuses; the message begins with its place.

    Examples
    --------
    >>> E = tf.tpu.experimental.embedding
    >>> video = E.TableConfig(vocabulary_size=8, dim=4, combiner="sum", name="video")
    >>> engine = from_tpu_embedding({"watched": E.FeatureConfig(table=video)}, E.Adagrad(0.1))
    >>> engine.build()
    >>> engine.tables["video"].shape, list(engine.slots["video"])
    ((8, 4), ['accumulators'])
    """
    if pipeline_execution_with_tensor_core:
        raise _lacking("pipeline_execution_with_tensor_core", pipeline_execution_with_tensor_core)
    if sparse_core_embedding_config is not None:
        raise _lacking("sparse_core_embedding_config", sparse_core_embedding_config)
    leaves = flatten(
        feature_config, lambda one: isinstance(one, _TPU.FeatureConfig), "feature_config"
    )
    tables: dict[int, TableConfig] = {}
    features = [_feature(one, path, tables) for path, one in leaves]
    structure = unflatten(feature_config, features, lambda one: isinstance(one, _TPU.FeatureConfig))
    return ShardedEmbedding(structure, optimizer=_optimizer(optimizer, "optimizer"), **options)


def _feature(given: Any, path: str, tables: dict[int, TableConfig]) -> FeatureConfig:
    if not given.validate_weights_and_indices:
        raise _lacking(f"{path}.validate_weights_and_indices", False)
    shape = given.output_shape
    if shape.rank is not None and not shape.is_fully_defined():
        raise _lacking(f"{path}.output_shape", shape)
    if id(given.table) not in tables:
        tables[id(given.table)] = _table(given.table, f"{path}.table")
    made: FeatureConfig = _made(
        path,
        FeatureConfig,
        table=tables[id(given.table)],
        max_sequence_length=given.max_sequence_length,
        output_shape=None if shape.rank is None else tuple(shape.as_list()),
        name=given.name,
    )
    return made


def _table(given: Any, path: str) -> TableConfig:
    if isinstance(given.combiner, _CUSTOM_COMBINER):
        raise _lacking(f"{path}.combiner", given.combiner, "CustomCombiner")
    if getattr(given, "layout", None) is not None:
        raise _lacking(f"{path}.layout", given.layout)
    if getattr(given, "dtype", tf.float32) != tf.float32:
        raise _lacking(f"{path}.dtype", given.dtype)
    quantization = given.quantization_config
    if quantization is not None:
        quantization = _made(
            f"{path}.quantization_config",
            QuantizationConfig,
            num_buckets=quantization.num_buckets,
            lower=quantization.lower,
            upper=quantization.upper,
        )
    made: TableConfig = _made(
        path,
        TableConfig,
        vocabulary_size=given.vocabulary_size,
        dim=given.dim,
        initializer=given.initializer,
        optimizer=_optimizer(given.optimizer, f"{path}.optimizer"),
        combiner=given.combiner,
        name=given.name,
        quantization_config=quantization,
    )
    return made


def _optimizer(given: Any, path: str) -> Optimizer | None:
    """Return ours for one of TensorFlow's; ours and None as they are."""
    if given is None or isinstance(given, Optimizer):
        return given
    name = type(given).__name__
    if isinstance(given, _TPU.CustomOptimizer):
        raise _lacking(path, given, "CustomOptimizer")
    if name not in _OPTIMIZERS or not isinstance(given, getattr(_TPU, name)):
        raise ShardcoreTypeError(
            f"{path} must be one of tf.tpu.experimental.embedding or shardcore.optimizers, got "
            f"{shown(given)}"
        )
    values = dict(vars(given))
    for option in ("slot_variable_creation_fn", "low_dimensional_packing_status"):
        value = values.pop(option, None)
        if value:
            raise _lacking(f"{path}.{option}", value)
    clip = (values.pop("clip_gradient_min", None), values.pop("clip_gradient_max", None))
    if clip != (None, None):
        values["clipvalue"] = clip
    made: Optimizer = _made(path, getattr(optimizers, name), **values)
    return made


def _made(path: str, kind: Any, **values: Any) -> Any:
    try:
        return kind(**values)
    except ShardcoreError as error:
        raise type(error)(f"{path}: {error}") from error


def _lacking(path: str, value: Any, option: str | None = None) -> ShardcoreTypeError:
    known = path.rsplit(".", 1)[-1] if option is None else option
    return ShardcoreTypeError(
        f"{path} = {shown(value)} has no counterpart; instead, {_INSTEAD[known]}"
    )

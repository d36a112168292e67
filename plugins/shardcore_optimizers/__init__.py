"""The optimizers that come with shardcore, provided as a third party's would be.

This module is the plugin. Each family of optimizers is a module of its own; their common
steps are in `row_steps`, their compiled forms in `kernels`.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardcore.plugins import OptimizerSpec, hookimpl

__all__ = ["shardcore_optimizers"]


@hookimpl
def shardcore_optimizers() -> Iterator[OptimizerSpec]:
    """Provide the optimizers."""
    from shardcore_optimizers.adagrad import Adagrad, AdagradMomentum, RowwiseAdagrad
    from shardcore_optimizers.adam import Adam, AdamW, RowwiseAdam
    from shardcore_optimizers.custom import Custom
    from shardcore_optimizers.ftrl import FTRL
    from shardcore_optimizers.layerwise import LAMB, LARS
    from shardcore_optimizers.rmsprop import RMSProp
    from shardcore_optimizers.sgd import SGD

    for factory in (
        *(Adagrad, AdagradMomentum, Adam, AdamW, Custom, FTRL, LAMB, LARS),
        *(RMSProp, RowwiseAdagrad, RowwiseAdam, SGD),
    ):
        yield OptimizerSpec(factory.name, factory)

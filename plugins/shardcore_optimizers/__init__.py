"""The optimizers that come with shardcore, provided the way anyone else's are.

This module is the plugin. Each optimizer is a module of its own; its compiled form is in `kernels`.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardcore.hookspecs import OptimizerSpec, hookimpl

__all__ = ["shardcore_optimizers"]


@hookimpl
def shardcore_optimizers() -> Iterator[OptimizerSpec]:
    """Provide the optimizers."""
    from shardcore_optimizers.adagrad import Adagrad
    from shardcore_optimizers.sgd import SGD

    for factory in (Adagrad, SGD):
        yield OptimizerSpec(factory.name, factory)

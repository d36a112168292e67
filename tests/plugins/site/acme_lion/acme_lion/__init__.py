"""The optimizer Lion, compiled when the package is built."""

from shardcore.plugins import OptimizerSpec, hookimpl


@hookimpl
def shardcore_optimizers():
    from acme_lion.lion import Lion

    yield OptimizerSpec("Lion", factory=Lion)

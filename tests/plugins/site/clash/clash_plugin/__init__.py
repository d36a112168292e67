"""A plugin that provides names which shardcore's own plugins provide."""

from shardcore.plugins import BackendSpec, OptimizerSpec, hookimpl


@hookimpl
def shardcore_backends():
    yield BackendSpec("sim", factory=dict)


@hookimpl
def shardcore_optimizers():
    yield OptimizerSpec("SGD", factory=dict)

"""A hook that yields a name twice."""

from shardcore.plugins import OptimizerSpec, hookimpl


@hookimpl
def shardcore_optimizers():
    yield OptimizerSpec("Twin", factory=dict)
    yield OptimizerSpec("Twin", factory=list)

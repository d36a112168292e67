"""A hook that yields the other hook's records."""

from shardcore.plugins import OptimizerSpec, hookimpl


@hookimpl
def shardcore_backends():
    yield OptimizerSpec("Wrong", factory=dict)

"""A hook that is no generator."""

from shardcore.plugins import hookimpl


@hookimpl
def shardcore_optimizers():
    yield None

"""A hook that is no generator."""

from shardcore.hookspecs import hookimpl


@hookimpl
def shardcore_optimizers():
    yield None

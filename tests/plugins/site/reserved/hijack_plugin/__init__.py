"""A plugin that takes the entry-point name of one of shardcore's own."""

from shardcore.plugins import BackendSpec, hookimpl


@hookimpl
def shardcore_backends():
    yield BackendSpec("sim", factory=dict)

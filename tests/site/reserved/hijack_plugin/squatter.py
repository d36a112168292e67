"""A plugin that gives its backend a name kept for shardcore."""

from shardcore.hookspecs import BackendSpec, hookimpl


@hookimpl
def shardcore_backends():
    yield BackendSpec("shardcore_fast", factory=dict)

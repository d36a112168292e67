"""A plugin with a good hook and a misspelt one."""

from shardcore.plugins import BackendSpec, hookimpl


@hookimpl
def shardcore_backends():
    yield BackendSpec("spelling", factory=dict)


@hookimpl
def shardcore_optimisers():
    return ()

"""A hook that returns a record instead of yielding it."""

from shardcore.plugins import BackendSpec, hookimpl


@hookimpl
def shardcore_backends():
    return BackendSpec("bare", factory=dict)

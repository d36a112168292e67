"""A hook whose record is refused."""

from shardcore.plugins import BackendSpec, hookimpl


@hookimpl
def shardcore_backends():
    yield BackendSpec("Upper", factory=dict)

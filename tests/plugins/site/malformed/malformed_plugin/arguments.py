"""A hook that asks for an argument the specification does not have."""

from shardcore.plugins import BackendSpec, hookimpl


@hookimpl
def shardcore_backends(colour):
    yield BackendSpec(colour, factory=dict)

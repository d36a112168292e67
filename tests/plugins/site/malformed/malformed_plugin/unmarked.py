"""A plugin whose hook lacks the mark."""

from shardcore.plugins import BackendSpec


def shardcore_backends():
    yield BackendSpec("unmarked", factory=dict)

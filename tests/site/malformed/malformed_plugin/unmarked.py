"""A plugin whose hook lacks the mark."""

from shardcore.hookspecs import BackendSpec


def shardcore_backends():
    yield BackendSpec("unmarked", factory=dict)

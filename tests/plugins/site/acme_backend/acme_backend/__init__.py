"""A third party's backend for shardcore."""

from shardcore.plugins import BackendSpec, hookimpl


@hookimpl
def shardcore_backends():
    yield BackendSpec("acme", factory=_make)


def _make():
    from acme_backend.backend import AcmeBackend

    return AcmeBackend()

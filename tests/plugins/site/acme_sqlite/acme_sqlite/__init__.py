"""A backend that keeps rows in an SQLite database."""

from shardcore.plugins import BackendSpec, hookimpl


@hookimpl
def shardcore_backends():
    yield BackendSpec("sqlite", factory=_make)


def _make(path=":memory:"):
    from acme_sqlite.backend import SqliteBackend

    return SqliteBackend(path)

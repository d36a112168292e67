"""A third party's plugin: one backend, one optimizer, nothing heavy at import."""

from shardcore.plugins import BackendSpec, OptimizerSpec, hookimpl


@hookimpl
def shardcore_backends():
    yield BackendSpec("acme", factory=_make)


@hookimpl
def shardcore_optimizers():
    from shardcore_acme.heavy_ball import HeavyBall

    yield OptimizerSpec("HeavyBall", factory=HeavyBall)


def _make(colour="red"):
    from shardcore_acme.backend import AcmeBackend

    return AcmeBackend(colour)

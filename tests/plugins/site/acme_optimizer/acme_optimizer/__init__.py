"""A third party's optimizer for shardcore."""

from shardcore.plugins import OptimizerSpec, hookimpl


@hookimpl
def shardcore_optimizers():
    from acme_optimizer.nesterov import Nesterov

    yield OptimizerSpec("Nesterov", factory=Nesterov)

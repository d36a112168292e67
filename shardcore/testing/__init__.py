"""Conformance suites: proof that a backend or an optimizer of anybody's keeps its contract.

`BackendConformance` and `OptimizerConformance` are classes of tests. A package subclasses one of
them in its own tests, gives the fixtures it asks for, and pytest runs the whole battery. The
backends and optimizers that come with shardcore pass the same classes.

::

    BackendConformance     backend         tables, lookups, updates, threads, a state machine
    OptimizerConformance   optimizer       the pure form, its slots, the compiled form
    ModelBackend           model           a backend in plain NumPy loops, the oracle of the first
    BackendMachine         state_machine   random sequences of calls, beside the model
                           twins           one call on a backend and on the model, compared
                           requests        batches, gradients and optimizers to try it with
                           agreement       equal to the last bit, or within a tolerance

Needs pytest, hypothesis and ml_dtypes, the extra ``testing``; nothing else of shardcore imports
this package.

Examples
--------
The whole test of a backend, ``test_acme.py``::

    import pytest
    from shardcore.testing import BackendConformance
    from shardcore_acme.backend import AcmeBackend

    class TestAcme(BackendConformance):
        @pytest.fixture
        def backend(self):
            return AcmeBackend()

        @pytest.fixture
        def raw_rows(self):
            return lambda backend, table, slot: backend.arrays[table, slot]

and of an optimizer::

    import pytest
    from shardcore.testing import OptimizerConformance
    from shardcore_acme.heavy_ball import HeavyBall

    class TestHeavyBall(OptimizerConformance):
        @pytest.fixture
        def optimizer(self):
            return HeavyBall(learning_rate=0.05)
"""

from __future__ import annotations

from shardcore.errors import UnavailableError
from shardcore.extras import pip_install

try:
    import hypothesis  # noqa: F401  # imported here, so that its absence is raised at once
    import pytest
except ImportError as error:
    raise UnavailableError(
        f"shardcore.testing needs the package {error.name}; {pip_install('testing')}"
    ) from error

# Before the suites are imported, so that a failing assert shows its values.
pytest.register_assert_rewrite(
    "shardcore.testing.backend",
    "shardcore.testing.model",
    "shardcore.testing.optimizer",
    "shardcore.testing.state_machine",
    "shardcore.testing.twins",
)

from shardcore.testing.backend import BackendConformance  # noqa: E402 - needs both
from shardcore.testing.model import ModelBackend  # noqa: E402 - needs both
from shardcore.testing.optimizer import OptimizerConformance  # noqa: E402 - needs both
from shardcore.testing.state_machine import BackendMachine  # noqa: E402 - needs both

__all__ = ["BackendConformance", "BackendMachine", "ModelBackend", "OptimizerConformance"]

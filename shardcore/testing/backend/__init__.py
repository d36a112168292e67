"""The battery of tests that every backend passes, by chapter."""

from __future__ import annotations

from shardcore.testing.backend.device_arrays import DeviceArrayTests
from shardcore.testing.backend.engine import EngineTests
from shardcore.testing.backend.lookup import LookupTests
from shardcore.testing.backend.rows import RowTests
from shardcore.testing.backend.sequences import SequenceTests
from shardcore.testing.backend.tables import TableTests
from shardcore.testing.backend.threads import ThreadTests
from shardcore.testing.backend.update import UpdateTests

__all__ = ["BackendConformance"]


class BackendConformance(
    SequenceTests,
    EngineTests,
    ThreadTests,
    DeviceArrayTests,
    UpdateTests,
    LookupTests,
    RowTests,
    TableTests,  # pytest runs the last of these first
):
    """The contract of backends as tests; in words it is `shardcore.backend.base`.

    Subclass it as ``TestSomething`` and override two fixtures:

    ``backend``
        A fresh `Backend` without tables.
    ``raw_rows``
        A callable ``raw_rows(backend, table, slot)`` that returns what is stored of the weights
        (slot None) or of a slot, shape (num_rows, dim) or (num_rows, 1), rows in the order of the
        whole table. It must not use the backend's own ways of reading, which are under test: a
        wrong `gather` could otherwise hide a wrong `scatter`.

    and, where the backend takes gradients on a device, a third:

    ``to_device``
        A callable ``to_device(backend, array)`` that returns the values of a NumPy array, float32,
        float16 or bfloat16, as an array that the backend takes for a gradient, of the same shape
        and dtype.

    All that the backend's `capabilities` promise is tested, and that the rest is refused.
    Activations on a device are read by `numpy.asarray`.

    Attributes
    ----------
    exact : bool, default True
        Whether its results are those of `ModelBackend` to the last bit, as the contract's order of
        sums makes possible.
    tolerance : float, default 1e-5
        Relative and absolute, where `exact` is False.
    max_examples, steps_per_example : int, default 20 and 30
        Runs of the state machine, and calls in each.

    Examples
    --------
    The suite of a backend whose sums are exact:

    >>> import pytest
    >>> from shardcore.testing import BackendConformance, ModelBackend
    >>> class TestAcme(BackendConformance):
    ...     exact = True
    ...
    ...     @pytest.fixture
    ...     def backend(self):
    ...         return ModelBackend()
    ...
    ...     @pytest.fixture
    ...     def raw_rows(self):
    ...         return lambda backend, table, slot: backend.arrays[table, slot]
    """

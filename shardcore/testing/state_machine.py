"""Random sequences of calls on a backend, beside the model, found and shortened by Hypothesis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray

from shardcore import optimizers
from shardcore.backend.base import Backend
from shardcore.backend.messages import FeatureBags, TableSpec
from shardcore.dtypes import working_dtype
from shardcore.initializers.constants import RowId
from shardcore.initializers.distributions import Uniform
from shardcore.testing.requests import LayoutKind, Probe, bags_of, layout_over, make_spec, read_only
from shardcore.testing.twins import Looked, RawRows, Twins

__all__ = ["BackendMachine", "run_machine"]

NAMES = ("a", "b", "c")

# 0.1 and 1/3 have long fractions: their sums depend on the order. Zeros come with both signs.
values = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.1, 1 / 3, -2.75, 3.5, 1e-3])
# Powers of two, whose sums are exact: a divisor is 0 or far from it.
weights = st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0, 0.25])


class BackendMachine(RuleBasedStateMachine):
    """Creates, looks up, trains, scatters, reads, writes and drops; all is compared at every step.

    Parameters
    ----------
    backend : Backend
        Without tables; all that a run creates it drops in the end, so that one backend serves many
        runs.
    raw_rows : callable
    tolerance : float or None
    dtypes : sequence of str
    """

    def __init__(
        self, backend: Backend, raw_rows: RawRows, tolerance: float | None, dtypes: Sequence[str]
    ) -> None:
        super().__init__()
        self.twins = Twins(backend, raw_rows, tolerance)
        self.dtypes = dtypes
        self.in_flight: list[Looked] = []
        self.step = 0

    @property
    def specs(self) -> dict[str, TableSpec]:
        """The tables that exist."""
        return self.twins.model.specs

    @property
    def trained(self) -> list[str]:
        """The tables that exist and have an optimizer."""
        return sorted(name for name, spec in self.specs.items() if spec.optimizer is not None)

    @property
    def keys(self) -> list[tuple[str, str | None]]:
        """All weights and slots that exist."""
        return list(self.twins.model.arrays)

    # --- rules -----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.specs) < len(NAMES))
    @rule(data=st.data())
    def create(self, data: st.DataObject) -> None:
        """Create tables of free names in one call, alike in all but rows, layout and seed."""
        free = [name for name in NAMES if name not in self.specs]
        names = data.draw(st.lists(st.sampled_from(free), min_size=1, max_size=2, unique=True))
        optimizer = data.draw(
            st.sampled_from([Probe(), None, optimizers.SGD(0.5), optimizers.Adagrad(0.5)])
        )
        dim = data.draw(st.sampled_from([1, 2, 17]), "dim")
        dtype = data.draw(st.sampled_from(self.dtypes), "dtype")
        backend = self.twins.backend
        specs = []
        for name in names:
            num_rows = data.draw(st.integers(1, 9), "num_rows")
            layout: LayoutKind = data.draw(st.sampled_from(sorted(backend.capabilities.layouts)))
            specs.append(
                make_spec(
                    name,
                    num_rows,
                    dim,
                    dtype,
                    optimizer,
                    initializer=data.draw(st.sampled_from([Uniform(-1.0, 1.0), RowId()])),
                    seed=data.draw(st.integers(0, 2**64 - 1), "seed"),
                    layout=layout_over(backend.num_hosts, layout, num_rows),
                )
            )
        self.twins.create_together(specs)

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """Drop a table; batches of it that wait for gradients are given up."""
        name = data.draw(st.sampled_from(sorted(self.specs)))
        self.twins.drop(name)
        self.in_flight = [looked for looked in self.in_flight if looked.batch.table != name]

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        """Look up any tables in one call, to serve."""
        names = data.draw(st.lists(st.sampled_from(sorted(self.specs)), min_size=1, unique=True))
        self.twins.lookup(*((name, self._features(data, name)) for name in names))

    @precondition(lambda self: self.trained)
    @rule(data=st.data())
    def look_up_to_train(self, data: st.DataObject) -> None:
        """Look up tables in one call; their gradients may come at any time, in this order."""
        names = data.draw(st.lists(st.sampled_from(self.trained), min_size=1, unique=True))
        requests = [(name, self._features(data, name)) for name in names]
        self.in_flight += self.twins.lookup(*requests, training=True)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def apply(self, data: st.DataObject) -> None:
        """Apply gradients to the batch that waits longest, and of all tables in one call or not."""
        taken = [self.in_flight.pop(0)]
        while len(self.in_flight) > 0 and data.draw(st.booleans(), "one more table"):
            if any(looked.batch.table == self.in_flight[0].batch.table for looked in taken):
                break
            taken.append(self.in_flight.pop(0))
        self.step += 1
        shares = []
        for looked in taken:
            gradients: list[NDArray[Any] | None] = []
            for bags in looked.batch.features:
                # At least one feature of an update has a gradient.
                last = len(gradients) + 1 == len(looked.batch.features)
                needed = last and all(one is None for one in gradients)
                if needed or data.draw(st.booleans(), "has a gradient"):
                    gradients.append(self._values(data, looked.spec, bags.num_bags))
                else:
                    gradients.append(None)
            shares.append((looked, gradients))
        self.twins.apply(*shares, step=self.step)

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def scatter(self, data: st.DataObject) -> None:
        """Overwrite distinct rows."""
        table, slot = data.draw(st.sampled_from(self.keys))
        stored = self.twins.model.arrays[table, slot]
        rows = data.draw(st.lists(st.integers(0, len(stored) - 1), unique=True, max_size=5), "rows")
        given = self._stored(data, slot, (len(rows), stored.shape[1]), stored.dtype)
        self.twins.scatter(table, slot, np.array(rows, np.int64), given)

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """Overwrite a range of rows."""
        table, slot = data.draw(st.sampled_from(self.keys))
        stored = self.twins.model.arrays[table, slot]
        start = data.draw(st.integers(0, len(stored)), "start")
        count = data.draw(st.integers(0, len(stored) - start), "count")
        given = self._stored(data, slot, (count, stored.shape[1]), stored.dtype)
        self.twins.write(table, slot, start, given)

    @precondition(lambda self: self.specs)
    @rule()
    def read(self) -> None:
        """Gather, read and take the shards of all that there is."""
        self.twins.check_reads()

    @invariant()
    def what_is_stored_agrees(self) -> None:
        """Rows and slots are those of the model."""
        self.twins.check_storage()

    def teardown(self) -> None:
        """Drop what is left."""
        for name in list(self.specs):
            self.twins.drop(name)
        self.twins.check_storage()

    # --- what is drawn ---------------------------------------------------------------------------

    def _features(self, data: st.DataObject, table: str) -> list[FeatureBags]:
        return [self._bags(data, self.specs[table]) for _ in range(data.draw(st.integers(1, 2)))]

    def _bags(self, data: st.DataObject, spec: TableSpec) -> FeatureBags:
        bags_per_sample = data.draw(st.sampled_from([1, 1, 3]), "bags_per_sample")
        bag = st.lists(st.integers(0, spec.num_rows - 1), max_size=3)
        bags = data.draw(st.lists(bag, max_size=6), "bags")
        bags += [[]] * (-len(bags) % bags_per_sample)
        ids = np.array(list(itertools.chain(*bags)), data.draw(st.sampled_from(["int64", "int32"])))
        row_splits = np.cumsum([0, *map(len, bags)]).astype(np.int64)
        given = None
        if data.draw(st.booleans(), "weighted"):
            drawn = st.lists(weights, min_size=ids.size, max_size=ids.size)
            given = np.array(data.draw(drawn, "weights"), np.float64)
        combiner = data.draw(st.sampled_from(["sum", "mean", "sqrtn"]))
        return bags_of(spec, ids, row_splits, given, combiner, bags_per_sample)

    def _values(self, data: st.DataObject, spec: TableSpec, count: int) -> NDArray[Any]:
        return self._block(data, (count, spec.dim), working_dtype(spec.dtype))

    def _stored(
        self, data: st.DataObject, slot: str | None, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        block = self._block(data, shape, dtype)
        # Sums of squares are never negative, and their roots are taken.
        return block if slot is None else read_only(np.abs(block))

    def _block(
        self, data: st.DataObject, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Draw a value per row; the columns follow from it, else most of a run would be drawing."""
        firsts = data.draw(st.lists(values, min_size=shape[0], max_size=shape[0]), "values")
        column = np.array(firsts, np.float64).reshape(-1, 1)
        return read_only((column - 0.3 * np.arange(shape[1])).astype(dtype))


def run_machine(
    backend: Backend,
    raw_rows: RawRows,
    tolerance: float | None,
    dtypes: Sequence[str],
    max_examples: int,
    steps: int,
) -> None:
    """Run `BackendMachine`; what fails is raised with the shortest sequence of calls that does."""

    class Machine(BackendMachine):
        def __init__(self) -> None:
            super().__init__(backend, raw_rows, tolerance, dtypes)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # To explain a failure takes longer than to find it.
            phases=[phase for phase in Phase if phase is not Phase.explain],
        ),
    )

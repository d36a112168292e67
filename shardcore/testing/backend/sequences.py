"""Random sequences of calls."""

from __future__ import annotations

from shardcore.backend.base import Backend
from shardcore.dtypes import as_dtype
from shardcore.errors import UnavailableError
from shardcore.testing.backend.fixtures import BackendFixtures
from shardcore.testing.state_machine import run_machine
from shardcore.testing.twins import RawRows


class SequenceTests(BackendFixtures):
    """The state machine, beside the model."""

    def test_state_machine(self, backend: Backend, raw_rows: RawRows) -> None:
        """Random sequences of calls, beside the model; Hypothesis shows the shortest that fails."""
        dtypes = []
        for dtype in self._dtypes:
            try:
                as_dtype(dtype)
            except UnavailableError:
                continue
            dtypes.append(dtype)
        run_machine(
            backend,
            raw_rows,
            self._limit,
            dtypes,
            self.max_examples,
            self.steps_per_example,
        )

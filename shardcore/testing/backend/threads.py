"""Lookups beside updates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from shardcore import optimizers
from shardcore.backend.base import Backend
from shardcore.backend.messages import TableBatch, TableUpdate
from shardcore.initializers.constants import Constant
from shardcore.testing.backend.fixtures import BackendFixtures
from shardcore.testing.requests import bags_of, make_spec
from shardcore.testing.twins import looked_up

# A thread that has not finished by then never will.
PATIENCE_SECONDS = 60.0


class ThreadTests(BackendFixtures):
    """Calls from several threads at once."""

    def test_lookups_see_each_row_wholly_before_or_after_an_update(self, backend: Backend) -> None:
        """Readers look up while one thread applies: all columns of a row are of one moment."""
        rounds, num_rows, dim = 40, 48, 512
        spec = make_spec(
            "t",
            num_rows,
            dim,
            optimizer=optimizers.SGD(learning_rate=1.0),
            initializer=Constant(0.0),
        )
        backend.create_table(spec)
        assert spec.optimizer is not None
        hyper = spec.optimizer.hyper()
        every_row = bags_of(spec, np.arange(num_rows), np.arange(num_rows + 1), None, "sum")
        ones = np.ones((num_rows, dim), np.float32)
        finished = threading.Event()

        def update() -> None:
            try:
                for step in range(1, rounds + 1):
                    batch = TableBatch("t", (every_row,), training=True)
                    backend.lookup([batch])
                    backend.apply([TableUpdate(batch, (ones,), hyper, step)])
            finally:
                finished.set()

        def read() -> None:
            last = np.zeros(num_rows, np.float32)
            once_more = True
            while once_more:
                once_more = not finished.is_set()
                rows = looked_up(backend, [TableBatch("t", (every_row,))])[0][0]
                torn = (rows != rows[:, :1]).any(axis=1)
                assert not torn.any(), f"row {int(torn.argmax())} is torn between two updates"
                assert (rows[:, 0] <= last).all(), "a later lookup must not see an earlier row"
                last = rows[:, 0]

        _run_at_once([update, read, read, read])
        rows = backend.gather("t", None, np.arange(num_rows))
        arrived = np.abs(rows + rounds) <= (self._limit or 0.0) * rounds
        assert arrived.all(), "every update must have arrived"


def _run_at_once(works: Sequence[Callable[[], None]]) -> None:
    """Run each in a thread of its own; raise the first error, or if one does not finish."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    end = time.monotonic() + PATIENCE_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), (
        f"calls from several threads did not return within {PATIENCE_SECONDS:g} seconds"
    )

"""Values that are computed once, in threads that do not wait for each other."""

from __future__ import annotations

import threading
from typing import Any

from shardcore.cached_property import cached_property

SOON = 30.0


class Table:
    def __init__(self, wait: Any = None) -> None:
        self.wait, self.asked = wait, 0

    @cached_property
    def rows(self) -> int:
        """How many."""
        self.asked += 1
        if self.wait is not None:
            self.wait.wait(SOON)
        return self.asked


def test_a_value_is_computed_once_and_may_be_forgotten() -> None:
    table = Table()
    assert (table.rows, table.rows, table.asked) == (1, 1, 1)
    del table.rows
    assert table.rows == 2
    assert Table.rows.__doc__ == "How many."


def test_no_thread_waits_for_a_value_that_another_computes() -> None:
    held, found = threading.Event(), []
    waiting = Table(held)
    one = threading.Thread(target=lambda: waiting.rows)
    one.start()
    while not waiting.asked:
        pass
    other = threading.Thread(target=lambda: found.append(Table().rows))
    other.start()
    other.join(SOON)
    assert found == [1]
    assert one.is_alive()
    held.set()
    one.join(SOON)

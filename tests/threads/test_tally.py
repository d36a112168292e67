"""Numbers that several threads add to: none is lost, all are read as of one time."""

from __future__ import annotations

import copy
import pickle
import re
import threading

import pytest

from shardcore.threads.tally import Tally


def test_nothing_is_lost_and_nothing_is_read_half_added() -> None:
    tally, rounds, threads = Tally(3), 20_000, 4
    torn: list[tuple[int, ...]] = []

    def add() -> None:
        for _ in range(rounds):
            tally.add(1, 2, -3)

    adding = [threading.Thread(target=add) for _ in range(threads)]
    for thread in adding:
        thread.start()
    while any(thread.is_alive() for thread in adding):
        one, two, three = tally.read()
        if (two, three) != (2 * one, -3 * one):
            torn.append((one, two, three))
    for thread in adding:
        thread.join()
    assert not torn
    count = rounds * threads
    assert tally.read() == (count, 2 * count, -3 * count)


def test_what_is_wrong_adds_nothing() -> None:
    tally = Tally(2)
    with pytest.raises(TypeError, match=r"^amounts must be 2 numbers, got 1$"):
        tally.add(1)
    with pytest.raises(TypeError, match=r"^amounts must be 2 numbers, got 3$"):
        tally.add(1, 2, 3)
    with pytest.raises(TypeError):
        tally.add(1, "two")  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        tally.add(1, 2**63)
    assert tally.read() == (0, 0)


@pytest.mark.parametrize("size", [0, -1, 9])
def test_there_are_one_to_eight(size: int) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'size must be in [1, 8], got {size}')}$"):
        Tally(size)
    assert Tally(8).read() == (0,) * 8


def test_a_tally_is_not_copied() -> None:
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"^a Tally cannot be copied or pickled$"):
            copied(Tally(1))

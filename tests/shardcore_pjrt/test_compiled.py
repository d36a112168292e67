"""Programs are kept up to a number of bytes; those forgotten compile again."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from shardcore_pjrt.programs import compiled
from shardcore_pjrt.programs.compiled import Programs

MADE = []


def made(number):
    MADE.append(number)
    return jax.jit(lambda array: array + number)


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    MADE.clear()
    monkeypatch.setattr(compiled, "_kept", type(compiled._kept)())


def run(programs, number):
    return programs.get(made, number)(np.float32(1))


def test_a_program_is_counted_once_per_what_is_compiled_of_it():
    program = Programs().get(made, 1)
    assert program.nbytes == 0
    assert program(np.float32(1)) == 2
    once = program.nbytes
    assert once > 100
    program(np.float32(2))
    assert program.nbytes == once
    program(np.ones(3, np.float32))
    assert program.nbytes > once


def test_programs_seen_are_kept_while_there_is_room():
    programs = Programs()
    for _ in range(2):
        for number in range(4):
            assert run(programs, number) == number + 1
    assert MADE == [0, 1, 2, 3]
    assert programs.distinct == 4


def test_those_not_used_for_longest_are_forgotten_and_compile_again(monkeypatch):
    programs = Programs()
    run(programs, 1)
    size = programs.get(made, 1).nbytes
    monkeypatch.setattr(compiled, "LARGEST", int(2.5 * size))
    for number in (2, 1, 3):
        run(programs, number)
    assert list(compiled._kept) == [(made, 1), (made, 3)]  # 2 has gone
    assert run(programs, 2) == 3
    assert MADE == [1, 2, 3, 2]
    assert programs.distinct == 3


def test_a_program_larger_than_all_the_room_stays_while_it_is_used(monkeypatch):
    programs = Programs()
    monkeypatch.setattr(compiled, "LARGEST", 1)
    for _ in range(3):
        run(programs, 0)
    assert MADE == [0]
    run(programs, 1)
    assert list(compiled._kept) == [(made, 1)]


def test_code_is_counted_where_the_platform_tells_of_it():
    class Told:
        generated_code_size_in_bytes = 70_000

        def memory_analysis(self):
            return self

    assert compiled.code_bytes(Told()) == 70_000


def test_small_programs_are_forgotten_by_their_number(monkeypatch):
    monkeypatch.setattr(compiled, "MOST", 2)
    programs = Programs()
    for number in range(5):
        run(programs, number)
    assert list(compiled._kept) == [(made, 3), (made, 4)]

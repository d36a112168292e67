"""Ctrl-C, forks and reads beside writes: samples of what ``make test-long`` does for minutes.

Each is a program of its own, so that a hang or a crash is a failure and not the end of the tests.
SHARDCORE_TEST_SECONDS makes them longer, SHARDCORE_TEST_SEED repeats one.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("SHARDCORE_TEST_SECONDS", "3"))
LONG = SECONDS > 10
BACKENDS = ("cpu", "sim")
READS = ("lookup", "prepared", "gather", "read", "whole", "shards", "slot", "dots")
WRITES = ("apply", "scatter", "write", "slot")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="signals and forks as POSIX has them"),
    pytest.mark.timeout(600 + 3 * SECONDS),
]


def run(name: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(HERE / name), *arguments],
        capture_output=True,
        text=True,
        timeout=300 + 3 * SECONDS,
        env={**os.environ, **environment},
    )
    print(done.stdout)  # the seed, where it fails
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["lookup", "training", "pipeline"])
def test_tables_and_step_survive_interrupts_at_random_moments(mode: str, backend: str) -> None:
    last = run("storm.py", mode, backend)
    assert last.startswith(f"{mode} {backend}: ")
    assert ", 0 interrupts," not in last


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("call", ["lookup", "training", "pipeline", "write", "restore", "close"])
def test_an_interrupt_at_any_bytecode_splits_nothing(call: str, backend: str) -> None:
    # A call runs some thousand bytecodes; a sample begins anywhere.
    last = run("opcodes.py", call, backend, STRIDE="1" if LONG else "97")
    assert last.startswith(f"{call} {backend}: ")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["inline", "pipeline"])
def test_a_child_finds_whole_tables(mode: str, backend: str) -> None:
    forks = 250 if LONG else 10
    last = run("forks.py", str(forks), backend, mode)
    assert last.startswith(f"{mode} {backend}: {forks} forks, 0 failed")


PAIRS = [(r, w, b) for r in READS for w in WRITES for b in BACKENDS]


@pytest.mark.parametrize("number", range(len(PAIRS) if LONG else len(PAIRS) // 4))
def test_no_read_sees_half_a_write(number: int, fuzz_seed: int) -> None:
    read, write, backend = PAIRS[number] if LONG else random.Random(fuzz_seed).choice(PAIRS)
    last = run("torn_rows.py", read, write, backend, SHARDCORE_TEST_SECONDS=str(SECONDS / 6))
    assert last.endswith("none torn")

"""What the tests of the plugins share: a seed of the run."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def seed():
    """Return a seed that varies by run, shown where a test fails.

    ``SHARDCORE_TEST_SEED=n`` repeats a run.
    """
    given = os.environ.get("SHARDCORE_TEST_SEED")
    drawn = int.from_bytes(os.urandom(4), "little") if given is None else int(given)
    print(f"repeat with SHARDCORE_TEST_SEED={drawn}")
    return drawn

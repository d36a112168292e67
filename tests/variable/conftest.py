"""A variable of eight rows, in every layout."""

from __future__ import annotations

import pytest
from rows_in_shards import LAYOUTS, ROWS, sharded

from shardcore.variable.variable import ShardedVariable


@pytest.fixture(params=LAYOUTS, ids=repr)
def v(request: pytest.FixtureRequest) -> ShardedVariable:
    return sharded(ROWS, request.param)

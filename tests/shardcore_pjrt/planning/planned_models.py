"""What tests of several files plan with: a model, the needs of a table, an answer of a compiler."""

from __future__ import annotations

import numpy as np
from shardcore_pjrt.planning.ahead_of_time import Compiled
from shardcore_pjrt.planning.device_bytes import table_bytes
from shardcore_pjrt.planning.needs import TableNeeds

SMALL = """
batch = 64
ids = "uniform"
[[table]]
name = "a"
rows = 4096
dim = 128
hot = 4
[[table]]
name = "b"
rows = 1000
dim = 16
optimizer = "SGD"
placement = "table"
[[table]]
name = "c"
rows = 100
dim = 64
optimizer = ""
placement = "replicated"
"""


def needs(name, home=None, table=0, slots=0, batch=0, temporaries=0, **others):
    placement = "row" if home is None else "table"
    return TableNeeds(
        name, placement, home, "gather", table, slots, batch, 0, temporaries, **others
    )


def homes(plan):
    return {name: one.home for one in plan.tables for name in one.members or (one.name,)}


def compiled_of(geometry, temporaries=0):
    table = table_bytes(geometry, np.dtype(np.float32))
    return Compiled(0.5, 3 * table, 0, 0, temporaries, 100, 0, {}, ())

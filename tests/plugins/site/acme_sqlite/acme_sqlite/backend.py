"""Rows and slots as blobs in one SQLite table, each read and written where it is needed."""

import sqlite3
import threading

import numpy as np

from shardcore.backend import Backend
from shardcore.errors import ShardcoreValueError
from shardcore.initializers import fill
from shardcore.optimizer import initial_slots

BLOCK = 4096  # rows that are initialised at a time
SCHEMA = """
CREATE TABLE IF NOT EXISTS cells (
    name TEXT, slot TEXT, row INTEGER, content BLOB, PRIMARY KEY (name, slot, row)
) WITHOUT ROWID
"""


class SqliteBackend(Backend):
    """Tables in a database: as large as the disk, as slow as it too."""

    name = "sqlite"

    def __init__(self, path=":memory:"):
        super().__init__()
        self.database = sqlite3.connect(path, check_same_thread=False)
        self.database.execute(SCHEMA)
        self._lock = threading.Lock()

    def create_table(self, spec):
        if spec.exchange != "exact":
            raise ShardcoreValueError(
                f"table {spec.name!r}: backend 'sqlite' has one host and exchanges nothing, "
                f"got exchange {spec.exchange!r}"
            )
        with self._lock, self.database:  # a block that raises changes nothing
            for start in range(0, spec.num_rows, BLOCK):
                numbers = range(start, min(start + BLOCK, spec.num_rows))
                rows = np.empty((len(numbers), spec.dim), spec.dtype)
                fill(rows, spec.initializer, numbers, spec.seed)
                self._put(spec.name, None, numbers, rows)
                slots = initial_slots(spec.optimizer, rows, numbers, spec.seed)
                for name, slot in slots.items():
                    self._put(spec.name, name, numbers, slot)
        self.specs[spec.name] = spec

    def drop_table(self, table):
        with self._lock, self.database:
            self.database.execute("DELETE FROM cells WHERE name = ?", (table,))
        del self.specs[table]

    def gather(self, table, slot, rows):
        out = np.empty((len(rows), *self._width(table, slot)), self._dtype(table, slot))
        query = "SELECT content FROM cells WHERE name = ? AND slot = ? AND row = ?"
        with self._lock:
            for at, row in enumerate(rows.tolist()):
                (content,) = self.database.execute(query, (table, slot or "", row)).fetchone()
                out[at] = np.frombuffer(content, out.dtype)
        return out

    def scatter(self, table, slot, rows, values):
        with self._lock, self.database:
            self._put(table, slot, rows.tolist(), values)

    def close(self):
        super().close()
        self.database.close()

    def _put(self, table, slot, rows, values):
        command = "INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?)"
        pairs = zip(rows, values, strict=True)
        cells = ((table, slot or "", row, one.tobytes()) for row, one in pairs)
        self.database.executemany(command, cells)

    def _slot(self, table, slot):
        return next(one for one in self.specs[table].optimizer.slots if one.name == slot)

    def _width(self, table, slot):
        dim = self.specs[table].dim
        return (dim,) if slot is None else self._slot(table, slot).shape(1, dim)[1:]

    def _dtype(self, table, slot):
        dtype = self.specs[table].dtype
        return dtype if slot is None else self._slot(table, slot).storage_dtype(dtype)

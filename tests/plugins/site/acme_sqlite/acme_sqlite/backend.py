"""Rows and slots as blobs in one SQLite table, each read and written where it is needed."""

import sqlite3
import threading

import numpy as np

from shardcore.backend import Backend, Capabilities, initial_blocks

SCHEMA = """
CREATE TABLE IF NOT EXISTS cells (
    name TEXT, slot TEXT, row INTEGER, content BLOB, PRIMARY KEY (name, slot, row)
) WITHOUT ROWID
"""


class SqliteBackend(Backend):
    """Tables in a database: as large as the disk, as slow as it too."""

    name = "sqlite"
    capabilities = Capabilities(exchanges=("exact",))  # one host exchanges nothing

    def __init__(self, path=":memory:"):
        super().__init__()
        self.database = sqlite3.connect(path, check_same_thread=False)
        self.database.execute(SCHEMA)
        self._lock = threading.Lock()

    def make_table(self, spec):
        with self._lock, self.database:  # a block that raises changes nothing
            for rows, arrays in initial_blocks(spec, block_rows=4096):
                for slot, values in arrays.items():
                    self._put(spec.name, slot, rows, values)

    def remove_table(self, table):
        with self._lock, self.database:
            self.database.execute("DELETE FROM cells WHERE name = ?", (table,))

    def gather(self, table, slot, rows):
        (_, width), dtype = self.specs[table].stored_as(slot)
        out = np.empty((len(rows), width), dtype)
        query = "SELECT content FROM cells WHERE name = ? AND slot = ? AND row = ?"
        with self._lock:
            for at, row in enumerate(rows.tolist()):
                (content,) = self.database.execute(query, (table, slot or "", row)).fetchone()
                out[at] = np.frombuffer(content, dtype)
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

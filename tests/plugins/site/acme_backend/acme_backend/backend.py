"""The smallest backend: arrays in a dictionary, the rest is the base class's."""

import threading

import numpy as np

from shardcore import Backend
from shardcore.errors import ShardcoreValueError
from shardcore.initializers import fill
from shardcore.optimizer import initial_slots


class AcmeBackend(Backend):
    """Tables in a dictionary of NumPy arrays."""

    name = "acme"

    def __init__(self):
        super().__init__()
        self.arrays = {}
        self._lock = threading.Lock()

    def create_table(self, spec):
        if spec.exchange != "exact":
            raise ShardcoreValueError(
                f"table {spec.name!r}: backend 'acme' has one host and exchanges nothing, "
                f"got exchange {spec.exchange!r}"
            )
        rows = np.empty((spec.num_rows, spec.dim), spec.dtype)
        fill(rows, spec.initializer, range(spec.num_rows), spec.seed)
        self.arrays[spec.name, None] = rows
        for name, slot in initial_slots(
            spec.optimizer, rows, range(spec.num_rows), spec.seed
        ).items():
            self.arrays[spec.name, name] = slot
        self.specs[spec.name] = spec

    def drop_table(self, table):
        del self.specs[table]
        for key in [key for key in self.arrays if key[0] == table]:
            del self.arrays[key]

    def gather(self, table, slot, rows):
        with self._lock:
            return self.arrays[table, slot][rows]

    def scatter(self, table, slot, rows, values):
        with self._lock:
            self.arrays[table, slot][rows] = values

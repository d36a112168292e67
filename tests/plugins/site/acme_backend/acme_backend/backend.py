"""The smallest backend: arrays in a dictionary, the rest is the base class's."""

import threading

from shardcore.backend import Backend, Capabilities, initial_arrays


class AcmeBackend(Backend):
    """Tables in a dictionary of NumPy arrays."""

    name = "acme"
    capabilities = Capabilities(exchanges=("exact",))  # one host exchanges nothing

    def __init__(self):
        super().__init__()
        self.arrays = {}
        self._lock = threading.Lock()

    def make_table(self, spec):
        self.arrays[spec.name] = initial_arrays(spec)

    def remove_table(self, table):
        self.arrays.pop(table, None)

    def gather(self, table, slot, rows):
        with self._lock:
            return self.arrays[table][slot][rows]

    def scatter(self, table, slot, rows, values):
        with self._lock:
            self.arrays[table][slot][rows] = values

"""Reads beside writes, every pair of them: ``torn_rows.py READ WRITE BACKEND``.

Rows are wide, and every write gives all columns of a row one value, so a row that was read half
written shows two. SECONDS of the environment says for how long.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import shardcore as sc

ROWS, DIM = 64, 4096
IDS = np.arange(ROWS)


class Table:
    def __init__(self, backend: str) -> None:
        config = sc.TableConfig(ROWS, DIM, initializer=sc.initializers.Zeros(), name="t")
        self.engine = sc.ShardedEmbedding(
            sc.FeatureConfig(config),
            sc.optimizers.Adagrad(learning_rate=1.0),
            backend=backend,
            backend_options={"hosts": 2} if backend == "sim" else None,
        )
        self.engine.build()
        self.rows = self.engine.tables["t"]
        self.prepared = sc.prepare_lookup(self.rows)
        self.number = 0.0
        self.reads: dict[str, Callable[[], Any]] = {
            "lookup": lambda: self.engine(IDS),
            "prepared": lambda: self.prepared(IDS, np.arange(ROWS + 1)),
            "gather": lambda: self.rows[IDS],
            "read": lambda: self.rows[3:60],
            "whole": lambda: np.asarray(self.rows),
            "shards": lambda: np.concatenate(self.rows.shards),
            "slot": lambda: self.engine.slots["t"]["accumulators"][IDS],
            "dots": self.dots,
        }
        self.writes: dict[str, Callable[[], Any]] = {
            "apply": self.apply,
            "scatter": lambda: self.rows.scatter_update(IDS, self.next()),
            "write": lambda: self.write(self.rows),
            "slot": lambda: self.write(self.engine.slots["t"]["accumulators"]),
        }

    def next(self) -> np.ndarray:
        self.number += 1
        return np.full((ROWS, DIM), self.number, np.float32)

    def write(self, rows: sc.ShardedVariable) -> None:
        rows[0:ROWS] = self.next()

    def apply(self) -> None:
        self.engine.enqueue(IDS)
        self.engine.dequeue()
        self.engine.apply_gradients(np.ones((ROWS, DIM), np.float32))

    def dots(self) -> np.ndarray:
        """Return each row times signs that cancel where all its columns are equal."""
        backend = self.engine._backend
        bags = sc.backend.FeatureBags(IDS, np.arange(ROWS + 1))
        batch = sc.backend.TableBatch("t", (bags,), training=True)
        backend.lookup([batch])
        signs = np.where(np.arange(DIM) // 8 % 2, 1, -1).astype(np.float32)  # exact: 8 lanes
        update = sc.backend.TableUpdate(batch, (np.tile(signs, (ROWS, 1)),), (1.0,), 1)
        found = backend.weight_dots(update)[0]
        return np.stack([found, np.zeros_like(found)], axis=1)


def main(read: str, write: str, backend: str) -> None:
    sc.set_num_threads(2)
    table = Table(backend)
    end = time.monotonic() + float(os.environ.get("SHARDCORE_TEST_SECONDS", "1"))
    writes, errors = 0, []

    def go_on_writing() -> None:
        nonlocal writes
        try:
            while time.monotonic() < end or not writes:  # one, where all else is busy
                table.writes[write]()
                writes += 1
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=go_on_writing, daemon=True)
    writer.start()
    reads = torn = 0
    while time.monotonic() < end or not reads:
        found = np.asarray(table.reads[read]())
        reads += 1
        torn += bool((found != found[:, :1]).any())
    writer.join(60)
    assert not errors, errors
    assert not writer.is_alive(), "the writer hangs"
    assert reads
    assert writes
    assert not torn, (
        f"{torn} of {reads} reads ({read}) saw half of one of {writes} writes ({write})"
    )
    print(f"{read} beside {write} on {backend}: {reads} reads, {writes} writes, none torn")


if __name__ == "__main__":
    main(*sys.argv[1:])

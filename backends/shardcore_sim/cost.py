"""The costs that make up a simulated cluster's time: messages, memory, and sorting ids.

A call goes in stages. In a stage every host first computes, then sends and receives; a stage takes
as long as its slowest host computes, and then as its busiest host sends or receives.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import numpy as np

from shardcore.errors import ShardcoreTypeError
from shardcore.store import reduce_bags, sort_occurrences
from shardcore.validation import as_count
from shardcore_sim.faults import as_number

__all__ = ["CostModel", "as_cost", "calibrate"]


@dataclass(frozen=True)
class CostModel:
    """Costs on a host, in seconds and bytes.

    Parameters
    ----------
    latency : float, >= 0
        Seconds per message, at its sender and its receiver.
    bandwidth : float, >= 1
        Bytes per second that a host sends, and as many that it receives.
    row_latency : float, >= 0
        Seconds to begin a row at a random place of memory.
    memory_bandwidth : float, >= 1
        Bytes per second that a host reads or writes.
    sort_seconds : float, >= 0
        Per id that is sorted or grouped.
    memory : int or None
        Bytes of tables and slots that fit on a host; a table that does not is refused. None: any.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If one is no such number.

    Notes
    -----
    The defaults are a CPU host on a 100 Gbit/s network; `calibrate` measures what one machine can
    measure of itself.

    Examples
    --------
    >>> cost = CostModel(latency=1e-6, bandwidth=1e9)
    >>> cost.message_seconds(messages=2, nbytes=1000)
    3e-06
    """

    latency: float = 5e-6
    bandwidth: float = 12.5e9
    row_latency: float = 1e-8
    memory_bandwidth: float = 2e10
    sort_seconds: float = 1e-8
    memory: int | None = None

    def __post_init__(self) -> None:
        for name in ("latency", "row_latency", "sort_seconds"):
            as_number(getattr(self, name), f"{name} of CostModel")
        for name in ("bandwidth", "memory_bandwidth"):
            as_number(getattr(self, name), f"{name} of CostModel", 1)
        if self.memory is not None:
            as_count(self.memory, "memory of CostModel")

    def message_seconds(self, messages: float, nbytes: float) -> float:
        """Return how long a host sends, or receives, messages."""
        return messages * self.latency + nbytes / self.bandwidth

    def row_seconds(self, rows: float, nbytes: float) -> float:
        """Return how long a host reads or writes rows at random places, `nbytes` in all."""
        return rows * self.row_latency + nbytes / self.memory_bandwidth

    def id_seconds(self, ids: float) -> float:
        """Return how long a host sorts ids."""
        return ids * self.sort_seconds


def as_cost(cost: object) -> CostModel:
    """Return a cost model; None is the default one.

    Raises
    ------
    ShardcoreTypeError
        If it is something else.
    """
    if cost is None:
        return CostModel()
    if not isinstance(cost, CostModel):
        raise ShardcoreTypeError(f"cost must be a CostModel or None, got {cost!r}")
    return cost


def calibrate(base: CostModel | None = None, table_bytes: int = 1 << 27) -> CostModel:
    """Measure the costs of a host on this machine, in about a second.

    Reading rows of 64 and of 1,024 bytes at random gives the time to begin a row and the bandwidth
    of memory; sorting a batch gives the time per id. Latency and bandwidth of the network, and the
    memory of a host, cannot be measured here: they stay as `base` has them.

    Parameters
    ----------
    base : CostModel, optional
    table_bytes : int, >= 65536
        Size of the table that is read; larger than the last cache, to measure memory.

    Returns
    -------
    CostModel

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule.
    """
    base = as_cost(base)
    table_bytes = as_count(table_bytes, "table_bytes", 1 << 16)
    rng = np.random.default_rng(0)
    per_row = {}
    for dim in (16, 256):
        table = np.ones((table_bytes // (4 * dim), dim), np.float32)
        ids = rng.integers(0, len(table), 1 << 17 if dim == 16 else 1 << 15)
        splits = np.arange(0, ids.size + 1, 32, dtype=np.int64)
        out = np.empty((splits.size - 1, dim), np.float32)
        per_row[4 * dim] = _best_seconds(table, ids, splits, out) / ids.size
    # t(row) = row_latency + bytes / memory_bandwidth, through two points.
    bandwidth = max(1.0, (1024 - 64) / max(per_row[1024] - per_row[64], 1e-12))
    latency = max(0.0, per_row[64] - 64 / bandwidth)
    ids = rng.integers(0, 1 << 24, 1 << 18)
    sources = np.arange(ids.size, dtype=np.int32)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        sort_occurrences(ids, sources, None, 1 << 24)
        seconds.append(time.perf_counter() - begin)
    return dataclasses.replace(
        base,
        row_latency=latency,
        memory_bandwidth=bandwidth,
        sort_seconds=min(seconds) / ids.size,
    )


def _best_seconds(
    table: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    ids: np.ndarray[tuple[int], np.dtype[np.int64]],
    splits: np.ndarray[tuple[int], np.dtype[np.int64]],
    out: np.ndarray[tuple[int, int], np.dtype[np.float32]],
) -> float:
    seconds = []
    for _ in range(4):
        begin = time.perf_counter()
        reduce_bags(table, ids, splits, None, None, out)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
